"""Random chores: small files in the home folder, to be looked up, searched, or changed; every task has its own.

A file holds one word. Level 1 has files alone: what one holds, which one holds a word, writing a word. Level 2 adds
folders, files that name files, and renaming, copying and deleting. In level 3 the task does not say in which folder a
file is, and several files may have to be changed.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split, Task
from envs.os_interaction.chores import Chore, Match, Script
from envs.os_interaction.words import CONTENTS, FILES, FOLDERS

NUM_TASKS: dict[Split, int] = {"train": 20_000, "eval": 2_000}
# One chore of so many is for evaluation.
EVAL_EVERY = 8
_MAX_DRAWS = 2000

Files = Mapping[str, str]
"""What each file holds, by its path in the home folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """kinds: of chores. num_loose: files that are in no folder. num_words: how many of the words for files and contents
    it uses."""

    kinds: tuple[str, ...]
    num_files: int
    num_loose: int
    num_folders: int
    num_words: int
    max_turns: int


LEVELS = {
    1: Level(kinds=("lookup", "search", "write"), num_files=4, num_loose=4, num_folders=0, num_words=12, max_turns=4),
    2: Level(
        kinds=("lookup", "search", "hop", "write", "rename", "copy", "delete"),
        num_files=6,
        num_loose=2,
        num_folders=2,
        num_words=18,
        max_turns=6,
    ),
    3: Level(
        kinds=("find", "hop", "where", "move", "replace", "count", "delete all"),
        num_files=8,
        num_loose=0,
        num_folders=4,
        num_words=24,
        max_turns=8,
    ),
}


def level_of(number: int) -> Level:
    """Raises ConfigError for a level that does not exist."""
    if number not in LEVELS:
        raise ConfigError(f"environment os_interaction has levels {', '.join(map(str, LEVELS))}, got {number}")
    return LEVELS[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A chore without its machine. answer: of a question. after: what files shall hold. changed: what they hold at the
    beginning, where the chore has a say in it."""

    text: str
    steps: tuple[str, ...]
    answer: str | None = None
    after: Files | None = None
    changed: Files | None = None


class GeneratedSource:
    """Every task has a chore of its own, drawn from the task's seed."""

    data_sets = ()

    def __init__(self, level: Level) -> None:
        self._level = level
        self.max_turns = level.max_turns

    def num_tasks(self, split: Split) -> int:
        return NUM_TASKS[split]

    def chore(self, task: Task) -> Chore:
        rng = Random(task.seed)
        for _ in range(_MAX_DRAWS):
            files = self._files(rng)
            drawn = KINDS[rng.choice(self._level.kinds)](files, self._unused(rng, files))
            if drawn is not None and split_of(drawn) == task.split:
                return _made(files if drawn.changed is None else drawn.changed, drawn)
        raise AssertionError(f"no {task.split} chore in {_MAX_DRAWS} draws")

    def vocabulary(self) -> tuple[str, ...]:
        level = self._level
        return (*FILES[: level.num_words], *CONTENTS[: level.num_words], *FOLDERS[: 3 * level.num_folders])

    def _files(self, rng: Random) -> dict[str, str]:
        """In the order in which chores take them: the first one is asked about."""
        level = self._level
        names = rng.sample(FILES[: level.num_words], level.num_files)
        contents = rng.sample(CONTENTS[: level.num_words], level.num_files)
        folders = [f"{name}/" for name in rng.sample(FOLDERS[: 3 * level.num_folders], level.num_folders)]
        # Each folder has a file.
        places = folders + [""] * level.num_loose
        places += [rng.choice(folders) for _ in names[len(places) :]]
        rng.shuffle(places)
        return {f"{place}{name}": content for place, name, content in zip(places, names, contents, strict=True)}

    def _unused(self, rng: Random, files: Files) -> "Unused":
        level = self._level
        taken = {path.rpartition("/")[2] for path in files} | set(files.values())
        names = [name for name in FILES[: level.num_words] if name not in taken]
        contents = [word for word in CONTENTS[: level.num_words] if word not in taken]
        return Unused(name=rng.choice(names), content=rng.choice(contents))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """Words that no file has, as its name or what it holds."""

    name: str
    content: str


def split_of(drawn: Drawn) -> Split:
    """By what is asked and what is right: none of both together is in two splits."""
    key = f"{drawn.text} {drawn.answer}"
    return "eval" if derive_seed("os_interaction split", key) % EVAL_EVERY == 0 else "train"


def _made(files: Files, drawn: Drawn) -> Chore:
    folders = sorted({path.partition("/")[0] for path in files if "/" in path})
    lines = ["cd", *(f"mkdir -p {name}" for name in folders)]
    lines += [f"echo {content} > {path}" for path, content in files.items()]
    is_change = drawn.after is not None
    return Chore(
        description=drawn.text,
        init=(Script(language="bash", code="\n".join(lines)),),
        checks=(_expecting(drawn.after),) if drawn.after is not None else (),
        match=None if is_change else Match(answer=drawn.answer or ""),
        example=Script(language="bash", code="\n".join(drawn.steps)),
        steps=drawn.steps,
        answer=drawn.answer,
        is_change=is_change,
    )


def _expecting(files: Files) -> Script:
    """That the home folder has these files and no others, hidden ones aside."""
    expected = "\n".join(sorted(f"./{path}={content}" for path, content in files.items()))
    listing = 'find . -type f ! -name \'.*\' | while read -r path; do echo "$path=$(cat "$path")"; done | LC_ALL=C sort'
    return Script(language="bash", code=f'cd && [ "$({listing})" = {shlex.quote(expected)} ]')


def _first(files: Files) -> tuple[str, str]:
    return next(iter(files.items()))


def _named(path: str) -> str:
    """How a task calls a file."""
    folder, _, name = path.rpartition("/")
    return f"{name} in the folder {folder}" if folder else name


def _lookup(files: Files, unused: Unused) -> Drawn:
    path, content = _first(files)
    return Drawn(text=f"What is in the file {_named(path)}?", steps=(f"cat {path}",), answer=content)


def _search(files: Files, unused: Unused) -> Drawn | None:
    path, content = _first(files)
    folder, _, name = path.rpartition("/")
    if folder:
        command, text = f"cd {folder}; grep -l {content} *", f"Which file in the folder {folder} contains {content}?"
    elif any("/" in other for other in files):
        return None
    else:
        command, text = f"grep -l {content} *", f"Which file contains {content}?"
    return Drawn(text=text, steps=(command,), answer=name)


def _hop(files: Files, unused: Unused) -> Drawn:
    (path, _), (other, content) = list(files.items())[:2]
    changed = dict(files) | {path: other}
    text = f"The file {_named(path)} names a file. What is in that file?"
    return Drawn(text=text, steps=(f"cat {path}", f"cat {other}"), answer=content, changed=changed)


def _write(files: Files, unused: Unused) -> Drawn:
    path, _ = _first(files)
    text = f"Write {unused.content} into the file {_named(path)}."
    return Drawn(text=text, steps=(f"echo {unused.content} > {path}",), after=dict(files) | {path: unused.content})


def _renamed(files: Files, unused: Unused) -> tuple[str, str, dict[str, str]]:
    """A file, its new path, and the files without it."""
    path, _ = _first(files)
    folder, slash, _ = path.rpartition("/")
    return path, f"{folder}{slash}{unused.name}", {key: value for key, value in files.items() if key != path}


def _rename(files: Files, unused: Unused) -> Drawn:
    path, new, others = _renamed(files, unused)
    text = f"Rename the file {_named(path)} to {unused.name}."
    return Drawn(text=text, steps=(f"mv {path} {new}",), after=others | {new: files[path]})


def _copy(files: Files, unused: Unused) -> Drawn:
    path, new, _ = _renamed(files, unused)
    text = f"Copy the file {_named(path)} to {unused.name} beside it."
    return Drawn(text=text, steps=(f"cp {path} {new}",), after=dict(files) | {new: files[path]})


def _delete(files: Files, unused: Unused) -> Drawn:
    path, _, others = _renamed(files, unused)
    return Drawn(text=f"Delete the file {_named(path)}.", steps=(f"rm {path}",), after=others)


def _find(files: Files, unused: Unused) -> Drawn:
    path, content = _first(files)
    name = path.rpartition("/")[2]
    steps = (f"find . -name {name}", f"cat {path}")
    return Drawn(text=f"Some folder has a file {name}. What is in it?", steps=steps, answer=content)


def _where(files: Files, unused: Unused) -> Drawn:
    path, content = _first(files)
    folder = path.partition("/")[0]
    text = f"Which folder has a file that contains {content}?"
    return Drawn(text=text, steps=(f"dirname $(grep -l {content} */*)",), answer=folder)


def _move(files: Files, unused: Unused) -> Drawn | None:
    path, _ = _first(files)
    folder, _, name = path.partition("/")
    target = next((other.partition("/")[0] for other in files if other.partition("/")[0] != folder), None)
    if target is None:
        return None
    after = {key: value for key, value in files.items() if key != path} | {f"{target}/{name}": files[path]}
    text = f"Some folder has a file {name}. Move it to the folder {target}."
    return Drawn(text=text, steps=(f"mv */{name} {target}",), after=after)


def _replace(files: Files, unused: Unused) -> Drawn:
    """Half of the files hold the word."""
    paths = list(files)
    word = files[paths[0]]
    changed = dict(files) | dict.fromkeys(paths[: len(paths) // 2], word)
    after = {path: unused.content if held == word else held for path, held in changed.items()}
    text = f"Replace {word} by {unused.content} in every file that contains it."
    return Drawn(text=text, steps=(f"sed -i s/{word}/{unused.content}/ */*",), after=after, changed=changed)


def _count(files: Files, unused: Unused) -> Drawn:
    """A number that the word decides, so that it cannot be guessed from the chore's kind."""
    paths = list(files)
    word = files[paths[0]]
    number = 1 + derive_seed("os_interaction count", word + unused.content) % len(paths)
    changed = dict(files) | dict.fromkeys(paths[:number], word)
    text = f"How many files in the folders contain {word}?"
    return Drawn(text=text, steps=(f"grep -l {word} */* | wc -l",), answer=str(number), changed=changed)


def _delete_all(files: Files, unused: Unused) -> Drawn:
    paths = list(files)
    word = files[paths[0]]
    changed = dict(files) | dict.fromkeys(paths[: len(paths) // 2], word)
    after = {path: held for path, held in changed.items() if held != word}
    text = f"Delete every file that contains {word}."
    return Drawn(text=text, steps=(f"rm $(grep -l {word} */*)",), after=after, changed=changed)


KINDS: Mapping[str, Callable[[Files, Unused], Drawn | None]] = {
    "lookup": _lookup,
    "search": _search,
    "hop": _hop,
    "write": _write,
    "rename": _rename,
    "copy": _copy,
    "delete": _delete,
    "find": _find,
    "where": _where,
    "move": _move,
    "replace": _replace,
    "count": _count,
    "delete all": _delete_all,
}
