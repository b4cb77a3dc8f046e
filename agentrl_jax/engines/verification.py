"""Whether a server holds what was published to it. Shared by all servers of a run, which are each other's witnesses."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.server_checksums import check_server
from agentrl_jax.engines.sglang_weights import RankChecksums, ServerFacts, ServerWeights
from agentrl_jax.errors import EngineError

_REMEMBERED = 1000  # versions
_Layout = tuple[str | None, int]
"""Servers of the same device and number of ranks hash the same weights to the same checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """num_bytes: compared tensor by tensor. checksum: of everything, "" where the server has none."""

    num_bytes: int = 0
    checksum: str = ""


@dataclass(eq=False)
class Verification:
    """num_kv_heads: of the model. every: see `PublishConfig.verify_every`. on_disproof: called when one server has
    proven that another one, which was believed, holds something else: see `is_disproved`."""

    num_kv_heads: int
    every: int
    on_disproof: Callable[[], None]
    _witnessed: dict[tuple[int, _Layout], str] = field(default_factory=dict)
    _proven: dict[tuple[int, _Layout], set[str]] = field(default_factory=dict)

    def is_disproved(self, export: Export, facts: ServerFacts, verdict: Verdict) -> bool:
        """Whether a server with this verdict on `export` has been found out since."""
        proven = self._proven.get(_key(export, facts), set())
        return bool(proven and verdict.checksum) and verdict.checksum not in proven

    async def verify(
        self,
        export: Export,
        weights: ServerWeights,
        facts: ServerFacts,
        *,
        before: tuple[Export, Verdict] | None,
    ) -> Verdict:
        """Raise EngineError unless the server says that it serves `export`, and what it holds is that.

        before: what it served last, and the verdict on it; None: unknown, every tensor is compared then. A server
        that cannot hash its weights is believed.
        """
        said = (await weights.model_facts()).weight_version
        if said != str(export.version):
            raise EngineError(f"expected a server of version {export.version}, it says {said!r}")
        found = await weights.checksums()
        if found is None:
            return Verdict()
        checksum, key = found.per_engine_checksum, _key(export, facts)
        witness = self._witnessed.setdefault(key, checksum)
        proven = self._proven.setdefault(key, set())
        is_due = before is None or not before[1].checksum or export.version % self.every == 0
        if before is not None and not is_due:
            _check_changed(before, export, checksum)
        num_bytes = 0
        if is_due or (witness != checksum and checksum not in proven):  # one of two servers that differ is wrong
            # A publish that is given up does not wait for a hash.
            num_bytes = await trio.to_thread.run_sync(self._compare, export, found.ranks, facts, abandon_on_cancel=True)
            proven.add(checksum)
            if witness not in proven:
                self.on_disproof()
        for old in [key for key in self._witnessed if key[0] < export.version - _REMEMBERED]:
            del self._witnessed[old], self._proven[old]
        return Verdict(num_bytes=num_bytes, checksum=checksum)

    def _compare(self, export: Export, ranks: list[RankChecksums], facts: ServerFacts) -> int:
        return check_server(
            export,
            ranks,
            num_kv_heads=self.num_kv_heads,
            device=facts.device or "cpu",
            vocab_multiple=64 if facts.engine == "sglang" else 1,
            mlp_multiple=32 if facts.engine == "sglang" and facts.device == "cpu" else 1,
        )


def _key(export: Export, facts: ServerFacts) -> tuple[int, _Layout]:
    return export.version, (facts.device, facts.tp_size)


def _check_changed(before: tuple[Export, Verdict], export: Export, checksum: str) -> None:
    export_before, verdict = before
    is_changed = export_before.checksums != export.checksums
    if is_changed and checksum == verdict.checksum:
        raise EngineError(f"its weights are still those of version {export_before.version}")
    if not is_changed and checksum != verdict.checksum:
        raise EngineError(f"its weights have changed, but not those of version {export.version}")
