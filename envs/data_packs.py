"""What a folder of real task data may hold: every file, how much is in it, and who publishes it."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["records", "list", "mapping", "lines"]
_GAME = ("path", "task", "walkthrough", "problem", "cc")
_QUESTION = ("question", "entities", "actions", "answer")
_CHORE = ("id", "description", "check", "match")
_TABLE = ("description", "label", "table", "type")
_PRODUCT = ("asin", "name", "pricing", "product_category", "instruction_attributes", "name_nouns")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """names: it may have any of them, each as it is or compressed with xz.

    kind: records: a JSON object a line; list, mapping: one JSON value; lines: text.
    count: entries as published; None: any number.
    keys: that every record, or the mapping, must have.
    counted: the key of a mapping whose entries are counted; empty: its own.
    columns: that every line has at least, split at white space.
    is_needed: without it no env can use its folder.
    upstream: where its content is published.
    """

    names: tuple[str, ...]
    kind: Kind
    count: int | None
    keys: tuple[str, ...] = ()
    counted: str = ""
    columns: int = 0
    is_needed: bool = True
    upstream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPack:
    """folder: in the data folder. envs: the environments that read it. licence: of the data."""

    folder: str
    envs: tuple[str, ...]
    licence: str
    files: tuple[DataFile, ...]


def _alfworld() -> DataPack:
    games = "ALFWorld's data release (json_2.1.1 game files, game.tw-pddl), packed"
    lists = "AgentBench, data/alfworld"
    splits = (("train", 3553), ("valid_seen", 140), ("valid_unseen", 134), ("valid_train", 200))
    return DataPack(
        folder="alfworld",
        envs=("alfworld",),
        licence="MIT (ALFWorld, ALFRED); lists Apache-2.0",
        files=(
            DataFile(
                names=("common.json",),
                kind="mapping",
                count=None,
                keys=("pddl_domain", "grammar_template", "can_contain"),
                upstream=games,
            ),
            *(
                DataFile(
                    names=(f"{split}.jsonl",),
                    kind="records",
                    count=count,
                    keys=_GAME,
                    is_needed=split != "valid_train",
                    upstream=games,
                )
                for split, count in splits
            ),
            DataFile(
                names=("human_goals.json",),
                kind="mapping",
                count=4027,
                is_needed=False,
                upstream="ALFRED, data/json_2.1.0 (annotations)",
            ),
            *(
                DataFile(names=(f"agentbench_{name}.json",), kind="mapping", count=6, is_needed=False, upstream=lists)
                for name in ("new_std", "standard", "dev")
            ),
        ),
    )


def _dbbench() -> DataPack:
    agentbench = "AgentBench, data/dbbench"
    return DataPack(
        folder="dbbench",
        envs=("dbbench",),
        licence="Apache-2.0",
        files=(
            DataFile(names=("standard.jsonl",), kind="records", count=300, keys=_TABLE, upstream=agentbench),
            DataFile(names=("dev.jsonl",), kind="records", count=60, keys=_TABLE, is_needed=False, upstream=agentbench),
            DataFile(
                names=("db_out_new.jsonl", "train.jsonl"),
                kind="records",
                count=None,
                keys=_TABLE,
                is_needed=False,
                upstream=agentbench,
            ),
        ),
    )


def _wikitablequestions() -> DataPack:
    upstream = "WikiTableQuestions, release 1.0.2, packed"
    return DataPack(
        folder="wikitablequestions",
        envs=("dbbench",),
        licence="CC BY-SA 4.0",
        files=tuple(
            DataFile(
                names=(f"{name}.json",),
                kind="mapping",
                count=count,
                keys=("tables", "questions"),
                counted="questions",
                upstream=upstream,
            )
            for name, count in (("train", 12533), ("test_unseen_tables", 3982))
        ),
    )


def _knowledgegraph() -> DataPack:
    agentbench = "AgentBench, data/knowledgegraph"
    counts = (("kg_rl_all", 1214), ("std", 150), ("dev", 20))
    ontology = (("fb_roles", 19281, 3), ("fb_types", 21107, 3), ("reverse_properties", 9907, 2))
    return DataPack(
        folder="knowledgegraph",
        envs=("knowledgegraph",),
        licence="Apache-2.0; Freebase CC BY",
        files=(
            *(
                DataFile(
                    names=(f"{name}.json",),
                    kind="list",
                    count=count,
                    keys=_QUESTION,
                    is_needed=name != "dev",
                    upstream=agentbench,
                )
                for name, count in counts
            ),
            *(
                DataFile(
                    names=(f"ontology/{name}",),
                    kind="lines",
                    count=count,
                    columns=columns,
                    upstream=f"{agentbench}/ontology",
                )
                for name, count, columns in ontology
            ),
            DataFile(
                names=("ontology/vocab.json",),
                kind="mapping",
                count=3,
                keys=("attributes", "relations", "classes"),
                upstream=f"{agentbench}/ontology",
            ),
        ),
    )


def _fb15k237() -> DataPack:
    triples = (("train", 272115), ("valid", 17535), ("test", 20466))
    openke = "OpenKE, benchmarks/FB15K237, packed as head, tail, relation"
    return DataPack(
        folder="fb15k237",
        envs=("kg", "knowledgegraph"),
        licence="CC BY 2.5 (Freebase)",
        files=(
            DataFile(names=("entities.tsv",), kind="lines", count=14541, columns=2, upstream="kg-bert, data/FB15k-237"),
            DataFile(names=("relations.txt",), kind="lines", count=237, columns=1, upstream=openke),
            *(
                DataFile(names=(f"{part}_h_t_r.txt",), kind="lines", count=count, columns=3, upstream=openke)
                for part, count in triples
            ),
        ),
    )


def _webshop() -> DataPack:
    return DataPack(
        folder="webshop",
        envs=("webshop",),
        licence="MIT (WebShop); product texts are third parties'",
        files=(
            DataFile(
                names=("products_1000.jsonl",),
                kind="records",
                count=1000,
                keys=_PRODUCT,
                upstream="WebShop, the small set (items_shuffle_1000, items_ins_v2_1000), with nouns",
            ),
            DataFile(
                names=("human_goal_texts_12087.json",),
                kind="list",
                count=12087,
                is_needed=False,
                upstream="WebShop, items_human_ins (texts)",
            ),
        ),
    )


def _os_interaction() -> DataPack:
    agentbench = "AgentBench, data/os_interaction, scripts inlined"
    return DataPack(
        folder="os_interaction",
        envs=("os_interaction",),
        licence="Apache-2.0",
        files=tuple(
            DataFile(names=(f"{name}.jsonl",), kind="records", count=count, keys=_CHORE, upstream=agentbench)
            for name, count in (("train", 1000), ("std", 144), ("dev", 26))
        ),
    )


PACKS: tuple[DataPack, ...] = (
    _alfworld(),
    _dbbench(),
    _fb15k237(),
    _knowledgegraph(),
    _os_interaction(),
    _webshop(),
    _wikitablequestions(),
)
"""All known folders, by name."""
