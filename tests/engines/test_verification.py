"""Which publishes are believed: of one server against its last version, and of servers against each other."""

from pathlib import Path
from typing import Any, cast

import pytest
import trio

from agentrl_jax.engines.exports import Export, ExportFolder
from agentrl_jax.engines.server_checksums import bytes_hash
from agentrl_jax.engines.sglang_weights import (
    Checksums,
    ModelFacts,
    RankChecksums,
    RankPlace,
    ServerFacts,
    ServerWeights,
)
from agentrl_jax.engines.verification import Verdict, Verification
from agentrl_jax.errors import EngineError
from tests.engines.weight_fakes import NUM_KV_HEADS, exports_in, in_buckets, random_arrays

FACTS = ServerFacts(engine="agentrl_jax", device="cpu")


class Server:
    """Answers as a server that holds `arrays` and calls them `version`. whole: its checksum of everything."""

    def __init__(self, version: int, arrays: dict[str, Any], whole: str | None = None) -> None:
        hashes = {name: bytes_hash([array]) for name, array in arrays.items()}
        rank = RankChecksums(checksums=hashes, parallelism_info=RankPlace(tp_rank=0, tp_size=1))
        whole = bytes_hash(list(arrays.values())) if whole is None else whole
        self.checksum: Checksums | None = Checksums(ranks=[rank], per_engine_checksum=whole)
        self._version = str(version)

    async def model_facts(self) -> ModelFacts:
        await trio.lowlevel.checkpoint()
        return ModelFacts(weight_version=self._version)

    async def checksums(self) -> Checksums | None:
        await trio.lowlevel.checkpoint()
        return self.checksum


def export(exports: ExportFolder, version: int) -> Export:
    return exports.write(version, in_buckets(random_arrays(version)))


@pytest.fixture
def disproofs() -> list[str]:
    return []


@pytest.fixture
def verification(disproofs: list[str]) -> Verification:
    return Verification(num_kv_heads=NUM_KV_HEADS, every=10, on_disproof=lambda: disproofs.append("now"))


async def verify(
    verification: Verification, export: Export, server: Server, before: tuple[Export, Verdict] | None
) -> Verdict:
    return await verification.verify(export, cast("ServerWeights", server), FACTS, before=before)


def wrong(version: int) -> dict[str, Any]:
    arrays = random_arrays(version)
    return arrays | {"model.norm.weight": arrays["model.norm.weight"] + 1}


async def test_the_first_and_each_tenth_version_is_compared_tensor_by_tensor(
    tmp_path: Path, verification: Verification
) -> None:
    with exports_in(tmp_path / "exports") as exports:
        before, found = None, []
        for version in range(1, 12):
            published = export(exports, version)
            verdict = await verify(verification, published, Server(version, random_arrays(version)), before)
            before = published, verdict
            found.append(verdict.num_bytes)
        assert found == [published.num_bytes, *[0] * 8, published.num_bytes, 0]
        for version, seen in ((12, ""), (20, "its model.norm.weight is another")):
            opinion = verify(verification, export(exports, version), Server(version, wrong(version)), before)
            if seen:
                with pytest.raises(EngineError, match=seen):
                    await opinion
            else:  # one checksum tells only that something has changed
                assert (await opinion).num_bytes == 0


async def test_a_server_that_says_another_version_or_still_holds_the_last_one_is_refused(
    tmp_path: Path, verification: Verification
) -> None:
    with exports_in(tmp_path / "exports") as exports:
        first, second = export(exports, 1), export(exports, 2)
        before = first, await verify(verification, first, Server(1, random_arrays(1)), None)
        with pytest.raises(EngineError, match="expected a server of version 2, it says '1'"):
            await verify(verification, second, Server(1, random_arrays(2)), before)
        with pytest.raises(EngineError, match="its weights are still those of version 1"):
            await verify(verification, second, Server(2, random_arrays(1)), before)
        again = exports.write(3, in_buckets(random_arrays(1)))
        assert (await verify(verification, again, Server(3, random_arrays(1)), before)).num_bytes == 0
        with pytest.raises(EngineError, match="its weights have changed, but not those of version 3"):
            await verify(verification, again, Server(3, random_arrays(2)), before)


@pytest.mark.parametrize("is_wrong_first", [True, False])
async def test_of_servers_that_differ_the_wrong_one_is_disproved_whoever_comes_first(
    tmp_path: Path, verification: Verification, disproofs: list[str], is_wrong_first: bool
) -> None:
    with exports_in(tmp_path / "exports") as exports:
        first, second = export(exports, 1), export(exports, 2)
        before = first, await verify(verification, first, Server(1, random_arrays(1)), None)
        good, bad = Server(2, random_arrays(2)), Server(2, wrong(2))
        if is_wrong_first:
            believed = await verify(verification, second, bad, before)
            assert not verification.is_disproved(second, FACTS, believed)
            proven = await verify(verification, second, good, before)
            assert disproofs == ["now"]
            assert verification.is_disproved(second, FACTS, believed)
            assert not verification.is_disproved(second, FACTS, proven)
        else:
            believed = await verify(verification, second, good, before)
            with pytest.raises(EngineError, match=r"its model\.norm\.weight is another"):
                await verify(verification, second, bad, before)
            assert disproofs == []
            assert not verification.is_disproved(second, FACTS, believed)


async def test_servers_that_hash_the_same_weights_to_different_sums_are_all_right(
    tmp_path: Path, verification: Verification, disproofs: list[str]
) -> None:
    with exports_in(tmp_path / "exports") as exports:
        first, second = export(exports, 1), export(exports, 2)
        before = first, await verify(verification, first, Server(1, random_arrays(1)), None)
        arrays = random_arrays(2)
        verdicts = [await verify(verification, second, Server(2, arrays, whole), before) for whole in ("a", "b")]
        # The first has been doubted, and is asked for everything when it is brought back; then there is peace.
        verdicts.append(await verify(verification, second, Server(2, arrays, "a"), None))
        verdicts.append(await verify(verification, second, Server(2, arrays, "b"), before))
        assert disproofs == ["now"]
        assert not any(verification.is_disproved(second, FACTS, verdict) for verdict in verdicts)


async def test_a_server_without_hashes_is_believed_until_it_has_some(
    tmp_path: Path, verification: Verification
) -> None:
    with exports_in(tmp_path / "exports") as exports:
        first, second = export(exports, 1), export(exports, 2)
        silent = Server(1, wrong(1))
        silent.checksum = None
        before = first, await verify(verification, first, silent, None)
        assert before[1] == Verdict()
        assert (await verify(verification, second, Server(2, random_arrays(2)), before)).num_bytes == second.num_bytes
