"""What does rendering cost at turn 20 of a conversation of 8,000 tokens, and does it grow with the history?

    python -m benchmarks.rendering [--json] [--quick] [--tokenizer FOLDER]

Each turn samples some 200 ids that end with a tool call, and the environment answers with a tool message of some 200.
The template has Qwen3's structure and rewrites history; the tokenizer is a small one of our own, or FOLDER's with its
own template. Times are processor time of one call, the median of a repeat's calls.

first-prompt: ids of the first prompt, tools included, that no other episode has asked for. It runs in a thread once it
  is longer than what takes a millisecond (rendering/streams.py).
same-prompt: the same for the other members of a group.
reply-1, reply-20: ids before turn 2 and turn 21, from the sampled ids and the environment's message
  (`history_thinking = keep`). growth: reply-20 over reply-1.
strip-20: the same with `history_thinking = strip`, where the prompt is rendered anew; it runs in a thread.
parse: the action that a turn spells.
whole-20: the whole conversation as a template would have it, each turn, in systems that render again. whole_ratio: its
  time over reply-20's.

A good answer: reply-20 <= 0.5 ms, growth about 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from agentrl_jax.env import Message, Tool, ToolCall
from agentrl_jax.rendering.config import HistoryThinking, RenderingConfig
from agentrl_jax.rendering.protocol import Stream
from agentrl_jax.rendering.tokenizer import ChatTokenizer, load_tokenizer
from agentrl_jax.rendering.train_tokenizer import train_tokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.tokenizers import toy_template
from agentrl_jax.types import Ids
from benchmarks.figures import Figure, json_lines, summarise, table
from launch.config import parse

NAME = "rendering"
NUM_TURNS = 20
NUM_IDS = 200
TOOLS = tuple(
    Tool(
        name=name,
        description=f"The {name} of something in the house, as it is now.",
        parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    )
    for name in ("look", "open", "take", "place")
)
_WORDS = ("kitchen", "drawer", "open", "the", "is", "empty", "shelf", "lamp", "you", "see", "north", "a", "7", "door")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Processor time of prompts, replies and parsing in a long conversation."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """Few calls, once: a few seconds"""
    tokenizer: Path | None = None
    """A folder with a tokenizer and a chat template for tools"""


@dataclass(frozen=True, slots=True)
class Talk:
    """opening: the first messages. sampled: each turn's ids. answer: to each turn."""

    opening: tuple[Message, ...]
    turn: Message
    sampled: Ids
    answer: tuple[Message, ...]


def make_tokenizer(folder: Path | None) -> ChatTokenizer:
    """That of `folder`, or a small one with a template that rewrites history."""
    if folder is not None:
        return load_tokenizer(folder)
    text = " ".join(_WORDS[number * number % len(_WORDS)] for number in range(4000))
    with TemporaryDirectory(prefix="rendering-") as name:
        train_tokenizer([text], Path(name), vocab_size=320, chat_template=toy_template("qwen3"))
        return load_tokenizer(name)


def make_renderer(tokenizer: ChatTokenizer, history: HistoryThinking | None) -> TemplateRenderer:
    """A renderer of its own, with nothing in its caches."""
    return TemplateRenderer(tokenizer, tools=TOOLS, config=RenderingConfig(history_thinking=history))


def make_talk(renderer: TemplateRenderer) -> Talk:
    """Turns and answers of NUM_IDS ids or a few more."""

    def words(num_ids: int) -> str:
        chosen: list[str] = []
        while len(renderer.tokenizer.encode(" ".join(chosen))) < num_ids:
            chosen.append(_WORDS[len(chosen) * 5 % len(_WORDS)])
        return " ".join(chosen)

    call = ToolCall(name="look", arguments={"at": words(NUM_IDS - 60)})  # some templates have no text beside a call
    turn = Message(role="assistant", tool_calls=(call,))
    return Talk(
        opening=(Message(role="system", content=words(NUM_IDS)), Message(role="user", content=words(NUM_IDS))),
        turn=turn,
        sampled=renderer.encode_turn(turn),
        answer=(Message(role="tool", content=words(NUM_IDS)),),
    )


def stream_at(renderer: TemplateRenderer, talk: Talk, num_turns: int) -> Stream:
    """A stream that has answered `num_turns` turns."""
    stream = renderer.stream(TOOLS)
    stream.begin(talk.opening)
    for _ in range(num_turns):
        stream.follow(talk.sampled, talk.answer)
    return stream


def measure(calls: Sequence[Callable[[], object]]) -> float:
    """Median processor time of the calls in ms."""
    times = []
    for call in calls:
        begun = process_time()
        call()
        times.append(1000 * (process_time() - begun))
    return median(times)


def measure_all(tokenizer: ChatTokenizer, num_calls: int) -> dict[tuple[str, str], float]:
    """The value of each (case, metric) of one repeat."""
    keep = make_renderer(tokenizer, "keep")
    talk = make_talk(keep)
    fresh = [(*talk.opening, Message(role="user", content=f"Number {number}.")) for number in range(num_calls)]
    follow = {
        turns: [_follower(stream_at(keep, talk, turns - 1), talk) for _ in range(num_calls)] for turns in (1, NUM_TURNS)
    }
    times = {
        "first-prompt": measure([partial(keep.prompt, messages, TOOLS) for messages in fresh]),
        "same-prompt": measure([lambda: keep.prompt(fresh[-1], TOOLS)] * num_calls),
        "reply-1": measure(follow[1]),
        "reply-20": measure(follow[NUM_TURNS]),
        "parse": measure([lambda: keep.parse(talk.sampled)] * num_calls),
    }
    whole = [*talk.opening, *[message for _ in range(NUM_TURNS) for message in (talk.turn, *talk.answer)]]
    few = max(3, num_calls // 20)
    times["whole-20"] = measure([lambda: keep.full_render(whole, TOOLS, add_generation_prompt=True)] * few)
    if keep.rewrites_history:
        strip = make_renderer(tokenizer, "strip")
        times["strip-20"] = measure([_follower(stream_at(strip, talk, NUM_TURNS - 1), talk) for _ in range(few)])
    figures = {(case, "cpu_ms"): value for case, value in times.items()}
    figures["reply-20", "growth"] = times["reply-20"] / times["reply-1"]
    figures["whole-20", "whole_ratio"] = times["whole-20"] / times["reply-20"]
    figures["whole-20", "tokens"] = float(len(keep.full_render(whole, TOOLS, add_generation_prompt=True)))
    return figures


def _follower(stream: Stream, talk: Talk) -> Callable[[], object]:
    return lambda: stream.follow(talk.sampled, talk.answer)


def run(options: Options) -> list[Figure]:
    """All figures, of several repeats unless they are quick."""
    tokenizer = make_tokenizer(options.tokenizer)
    repeats = [measure_all(tokenizer, 20 if options.quick else 200) for _ in range(1 if options.quick else 5)]
    units = {"cpu_ms": "ms"}
    return [
        summarise(
            [repeat[case, metric] for repeat in repeats],
            benchmark=NAME,
            case=case,
            metric=metric,
            unit=units.get(metric, ""),
        )
        for case, metric in repeats[0]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    figures = run(options)
    print("\n".join(json_lines(figures)) if options.json else table(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
