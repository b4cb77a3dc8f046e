"""Freebase's schema: which relations and attributes there are, what they lead to, and which reverse which.

From the folder `knowledgegraph/ontology` of a data folder: `fb_roles` (a relation's domain and range a line),
`reverse_properties` and `vocab.json` (AgentBench's relations and attributes), each as it is or compressed with xz.
Freebase is licensed CC BY 2.5.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError

FOLDER = "knowledgegraph"
ANY_TYPE = "common.topic"


@dataclass(frozen=True, kw_only=True, eq=False)
class Ontology:
    """ranges: the type of what a relation leads to. by_domain: the relations that lead away from a type, sorted.

    reverses: a relation to the one that leads back.
    """

    relations: frozenset[str]
    attributes: frozenset[str]
    domains: Mapping[str, str]
    ranges: Mapping[str, str]
    by_domain: Mapping[str, tuple[str, ...]]
    reverses: Mapping[str, str]

    def range_of(self, relation: str) -> str:
        """The type of what a relation leads to; that of everything if the schema is silent."""
        return self.ranges.get(relation, ANY_TYPE)


def read_text(folder: Path, name: str) -> str:
    """A file of the pack, plain or compressed. Raises ConfigError naming what is missing or broken."""
    plain, packed = folder / name, folder / f"{name}.xz"
    try:
        if plain.is_file():
            return plain.read_text(encoding="utf-8")
        if packed.is_file():
            return lzma.decompress(packed.read_bytes()).decode("utf-8")
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise ConfigError(f"{packed if packed.is_file() else plain}: expected text, but {error}") from error
    raise ConfigError(f"environment knowledgegraph expects {plain} or {packed.name}, which are missing")


def read_json(folder: Path, name: str) -> Any:
    """As `read_text`, for JSON."""
    try:
        return json.loads(read_text(folder, name))
    except ValueError as error:
        raise ConfigError(f"{folder / name}: expected JSON, but {error}") from error


def load_ontology(data: Path) -> Ontology:
    """The schema of a data folder, read once per process. Raises ConfigError naming the file that is at fault."""
    return _load(data.resolve() / FOLDER / "ontology")


@lru_cache(maxsize=2)
def _load(folder: Path) -> Ontology:
    vocabulary = read_json(folder, "vocab.json")
    try:
        # Lines may go on; a relation that stands twice is what its last line says.
        roles = {parts[1]: (parts[0], parts[2]) for parts in map(str.split, read_text(folder, "fb_roles").splitlines())}
        reverses = dict(line.split("\t")[:2] for line in read_text(folder, "reverse_properties").splitlines())
        relations, attributes = frozenset(vocabulary["relations"]), frozenset(vocabulary["attributes"])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder}: expected Freebase's schema, but {error!r}") from error
    by_domain: dict[str, list[str]] = {}
    for relation in sorted(roles):
        by_domain.setdefault(roles[relation][0], []).append(relation)
    return Ontology(
        relations=relations,
        attributes=attributes,
        domains={relation: domain for relation, (domain, _) in roles.items()},
        ranges={relation: range_ for relation, (_, range_) in roles.items()},
        by_domain={domain: tuple(found) for domain, found in by_domain.items()},
        reverses=reverses,
    )
