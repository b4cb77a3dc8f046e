"""The FB15k-237 slice of Freebase: 14,541 named entities, 237 relations, 310,116 triples.

Read from the folder `fb15k237` of a data folder (`--data`); all three of its splits make one graph. Freebase is
licensed CC BY 2.5.
"""

import lzma
from collections import Counter
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import ConfigError

FOLDER = "fb15k237"
ENTITIES_FILE = "entities.tsv.xz"
RELATIONS_FILE = "relations.txt.xz"
TRIPLES_FILES = tuple(f"{part}_h_t_r.txt.xz" for part in ("train", "valid", "test"))

Ints = npt.NDArray[np.int64]


class FreebaseGraph:
    """Triples indexed by *pairs* (entity, relation), in ascending order of `entity * R + relation`.

    An entity's canonical name is its name as it stands in the data if no other entity has it, else name and MID
    as in `Georgia(/m/0d0x8)`. Names and MIDs hold no spaces. Every MID resolves too.

    pairs: int64 [P], distinct. starts: int64 [P + 1]; the objects of pair p are targets[starts[p]:starts[p + 1]],
    distinct and ascending.
    """

    def __init__(self, *, mids: list[str], names: list[str], relations: list[str], triples: Ints) -> None:
        num_holders = Counter(names)
        self.mids = tuple(mids)
        self.is_ambiguous = np.array([num_holders[name] > 1 for name in names])
        self.entities = tuple(
            f"{name}({mid})" if num_holders[name] > 1 else name for mid, name in zip(mids, names, strict=True)
        )
        self.relations = tuple(relations)
        self._names = names
        self._relation_ids = {name: i for i, name in enumerate(relations)}
        head, tail, relation = triples.T
        edges = np.unique((head * len(relations) + relation) * len(mids) + tail)
        self.pairs, first = np.unique(edges // len(mids), return_index=True)
        self.starts = np.append(first, len(edges))
        self.targets = edges % len(mids)

    def resolve(self, text: str) -> tuple[str, ...]:
        return tuple(self.entities[i] for i in self._ids.get(text, ()))

    def objects(self, entity: str, relation: str) -> tuple[str, ...] | None:
        relation_id = self._relation_ids.get(relation)
        if relation_id is None:
            return None
        pair = self.find_pair(self._ids[entity][0], relation_id)
        return () if pair is None else tuple(self.entities[i] for i in self.objects_of_pair(pair))

    def find_pair(self, entity: int, relation: int) -> int | None:
        key = entity * len(self.relations) + relation
        pair = int(np.searchsorted(self.pairs, key))
        return pair if pair < len(self.pairs) and self.pairs[pair] == key else None

    def pairs_of_entity(self, entity: int) -> range:
        """The pairs of all relations that lead away from an entity."""
        keys = (entity * len(self.relations), (entity + 1) * len(self.relations))
        first, last = np.searchsorted(self.pairs, keys)
        return range(int(first), int(last))

    def objects_of_pair(self, pair: int) -> list[int]:
        objects: list[int] = self.targets[self.starts[pair] : self.starts[pair + 1]].tolist()
        return objects

    @cached_property
    def _ids(self) -> dict[str, tuple[int, ...]]:
        ids: dict[str, tuple[int, ...]] = {}
        for i, name in enumerate(self._names):
            ids[name] = (*ids.get(name, ()), i)
        # A canonical name or a MID is the more specific word, should a plain name ever look like one.
        ids.update({name: (i,) for i, name in enumerate(self.entities)})
        ids.update({mid: (i,) for i, mid in enumerate(self.mids)})
        return ids


def load(data: Path) -> FreebaseGraph:
    """The graph of a data folder, read once per process. Raises ConfigError naming the file that is at fault."""
    return _load(data.resolve())


@lru_cache(maxsize=4)
def _load(data: Path) -> FreebaseGraph:
    folder = data / FOLDER
    missing = [name for name in (ENTITIES_FILE, RELATIONS_FILE, *TRIPLES_FILES) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"environment kg expects the FB15k-237 slice in {folder}; missing: {', '.join(missing)}")
    rows = [line.split("\t") for line in _lines(folder / ENTITIES_FILE)]
    if any(len(row) != 2 for row in rows):
        raise ConfigError(f"{folder / ENTITIES_FILE}: expected a MID, a tab and a name in every line")
    relations = _lines(folder / RELATIONS_FILE)
    triples = np.concatenate([_triples(folder / name, len(rows), len(relations)) for name in TRIPLES_FILES])
    return FreebaseGraph(
        mids=[mid for mid, _ in rows], names=[name for _, name in rows], relations=relations, triples=triples
    )


def _text(path: Path) -> str:
    try:
        return lzma.decompress(path.read_bytes()).decode("utf-8")
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected UTF-8 text compressed with xz, but {error}") from error


def _lines(path: Path) -> list[str]:
    return [line for line in _text(path).split("\n") if line]


def _triples(path: Path, num_entities: int, num_relations: int) -> Ints:
    """int64 [triples, 3]: head, tail, relation."""
    try:
        triples = np.array(_text(path).split(), dtype=np.int64).reshape(-1, 3)
    except ValueError as error:
        raise ConfigError(f"{path}: expected three ids in every line, but {error}") from error
    limits = (num_entities, num_entities, num_relations)
    if (triples < 0).any() or (triples >= limits).any():
        raise ConfigError(f"{path}: expected head, tail and relation ids below {limits}, got {triples.max(axis=0)}")
    return triples
