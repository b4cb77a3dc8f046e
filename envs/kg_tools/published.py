"""AgentBench's questions, from the pack of a data folder (`--data`) or from its own files.

`FOLDER/knowledgegraph/{kg_rl_all,std,dev}.json`, as they are or compressed with xz: each question with its entities,
its gold calls and its answers. They come from GrailQA, ComplexWebQuestions, GraphQuestions and WebQSP.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split, Task
from envs.kg_tools.desk import World
from envs.kg_tools.endpoint import find_endpoint
from envs.kg_tools.graph import Backend, Evaluator
from envs.kg_tools.one_shot import EXAMPLE
from envs.kg_tools.ontology import FOLDER, Ontology, load_ontology, read_json
from envs.kg_tools.problems import Problem
from envs.kg_tools.programs import Count, Entity, Extreme, Intersection, Join, Program, entities_of, parts_of
from envs.kg_tools.witness import build_witness

TRAIN_FILE = "kg_rl_all.json"
EVAL_SETS = ("std", "dev")
_CALL = re.compile(r"(\w+)\((.*)\)")
# Witness graphs take about 40 KiB each; the members of a group ask for the same one.
_MAX_BUILT = 256


def parse_gold(calls: list[str]) -> Program:
    """The program of the last variable that gold calls make. Raises ConfigError for calls that make none."""
    made: list[Program] = []
    for text in calls:
        found = _CALL.fullmatch(text)
        if found is None:
            raise ConfigError(f"expected a gold call, got {text!r}")
        name, arguments = found[1], [argument.strip() for argument in found[2].split(",")]
        try:
            sources = [made[int(a[1:])] if a.startswith("#") else Entity(a) for a in arguments]
            match name, arguments:
                case "get_relations" | "get_attributes", [_]:
                    continue
                case "get_neighbors", [_, relation]:
                    made.append(Join(relation, sources[0]))
                case "intersection", [_, _]:
                    made.append(Intersection(sources[0], sources[1]))
                case "argmax" | "argmin", [_, attribute]:
                    made.append(Extreme("argmax" if name == "argmax" else "argmin", sources[0], attribute))
                case "count", [_]:
                    made.append(Count(sources[0]))
                case _:
                    raise ConfigError(f"expected a gold call, got {text!r}")
        except (IndexError, ValueError) as error:
            raise ConfigError(f"expected a gold call, got {text!r}") from error
    if not made:
        raise ConfigError(f"gold calls make no variable: {calls}")
    return made[-1]


def load_questions(data: Path, name: str) -> tuple[Mapping[str, Any], ...]:
    """The questions of a file, read once per process. Raises ConfigError naming what is at fault."""
    return _load(data.resolve() / FOLDER, name)


@lru_cache(maxsize=8)
def _load(folder: Path, name: str) -> tuple[Mapping[str, Any], ...]:
    questions = read_json(folder, name)
    needed = {"question", "entities", "actions", "answer"}
    if not isinstance(questions, list) or not all(isinstance(q, dict) and needed <= q.keys() for q in questions):
        raise ConfigError(f"{folder / name}: expected a list of questions with {', '.join(sorted(needed))}")
    return tuple(questions)


class PublishedSource:
    """The questions of a data folder over witness graphs, or over the endpoint that the folder names.

    upstream_compat: as published for evaluation, a worked example comes first. Raises ConfigError for missing data.
    """

    data_sets = EVAL_SETS

    def __init__(self, data: Path, eval_set: str | None, *, upstream_compat: bool) -> None:
        # An unknown name is refused by the registry, which knows it from `data_sets`.
        name = eval_set if eval_set in EVAL_SETS else EVAL_SETS[0]
        self._upstream_compat = upstream_compat
        self._ontology = load_ontology(data)
        self._endpoint = find_endpoint(data / FOLDER)
        held_out = load_questions(data, f"{name}.json")
        asked = {row["question"] for row in held_out}
        # Published files overlap: no question of eval is one of training.
        train = tuple(row for row in load_questions(data, TRAIN_FILE) if row["question"] not in asked)
        self._questions = {"train": train, "eval": held_out}
        self._built = lru_cache(maxsize=_MAX_BUILT)(self._build)

    def num_tasks(self, split: Split) -> int:
        return len(self._questions[split])

    def problem(self, task: Task) -> Problem:
        return self._built(task.split, task.index)

    def vocabulary(self) -> tuple[str, ...]:
        return ()

    def _build(self, split: Split, index: int) -> Problem:
        row = self._questions[split][index]
        gold = parse_gold(row["actions"])
        answers = frozenset(answer["answer_argument"] for answer in row["answer"])
        if self._endpoint is not None:
            backend: Callable[[], Backend] = self._endpoint.session
        else:
            seed = derive_seed("knowledgegraph witness", row["question"])
            backend = partial(Evaluator, build_witness(gold, answers, self._ontology, seed))
        return Problem(
            question=row["question"],
            world=world_of(self._ontology, row["entities"], gold, upstream_compat=self._upstream_compat),
            gold=gold,
            answers=answers,
            backend=backend,
            example=EXAMPLE if self._upstream_compat and split == "eval" else (),
        )


def world_of(ontology: Ontology, entities: Mapping[str, str], gold: Program, *, upstream_compat: bool) -> World:
    """What can be named: the schema's words and those of the gold program, which uses some that the schema lacks."""
    parts = list(parts_of(gold))
    return World(
        ontology=ontology,
        entities=entities,
        ids=entities_of(gold),
        relations=ontology.relations | {part.relation for part in parts if isinstance(part, Join)},
        attributes=ontology.attributes | {part.attribute for part in parts if isinstance(part, Extreme)},
        upstream_compat=upstream_compat,
    )
