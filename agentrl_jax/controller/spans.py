"""OpenTelemetry's side of telemetry.py: what the spans of an episode are, and where they go.

    episode                     from its first call to its last
      reset                     the environment's call before the first turn; waiting for a worker is not in it
      turn                      one per engine call
        generate                the engine's call
        step                    the environment's

Every span carries the episode's id, as episodes.jsonl does. The only module that imports opentelemetry.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from agentrl_jax.controller.telemetry import CallTime, WriteSpans
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Trajectory, Turn

PREFIX = "agentrl."
_EXPORTERS = "opentelemetry_traces_exporter"
Attributes = Mapping[str, str | int | float | Sequence[int]]


@contextmanager
def open_spans(path: Path, *, epoch_s: float) -> Iterator[WriteSpans]:
    """Yield what writes an episode's spans, from one thread at a time; all exporters are flushed at the end.

    epoch_s: what to add to the calls' times for seconds since 1970. Raises ConfigError for an exporter that
    OTEL_TRACES_EXPORTER names and that is not installed.
    """
    named = _named_exporters(os.environ.get("OTEL_TRACES_EXPORTER", ""))
    provider = TracerProvider(shutdown_on_exit=False)
    # Not batched: the batches' queue drops what it has no room for, and this thread may as well wait for the file.
    provider.add_span_processor(SimpleSpanProcessor(JsonLinesExporter(path)))
    for exporter in named:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("agentrl_jax")
    try:
        yield lambda trajectory, calls: write_spans(tracer, trajectory, calls, epoch_s=epoch_s)
    finally:
        provider.shutdown()


def _named_exporters(names: str) -> list[SpanExporter]:
    exporters: list[SpanExporter] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name == "none":
            continue
        found = [*entry_points(group=_EXPORTERS, name=name)]
        if not found:
            known = ", ".join(sorted({entry.name for entry in entry_points(group=_EXPORTERS)}))
            raise ConfigError(
                f"OTEL_TRACES_EXPORTER names {name!r}, but installed are {known}; otlp comes with the package "
                "opentelemetry-exporter-otlp"
            )
        exporters.append(found[0].load()())
    return exporters


class JsonLinesExporter(SpanExporter):
    """One JSON object per span: name, trace, span, parent (hex, null at the top), begun_s (since 1970), duration_s,
    attributes, error (null if there was none)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="ascii")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._file.writelines(_line(span) for span in spans)
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self._file.flush()
        return True

    def shutdown(self) -> None:
        self._file.close()


def _line(span: ReadableSpan) -> str:
    begun_ns, ended_ns = span.start_time or 0, span.end_time or 0
    record = {
        "name": span.name,
        "trace": format(span.context.trace_id, "032x"),
        "span": format(span.context.span_id, "016x"),
        "parent": None if span.parent is None else format(span.parent.span_id, "016x"),
        "begun_s": begun_ns / 1e9,
        "duration_s": (ended_ns - begun_ns) / 1e9,
        "attributes": dict(span.attributes or {}),
        "error": span.status.description if span.status.status_code is StatusCode.ERROR else None,
    }
    return json.dumps(record, separators=(",", ":")) + "\n"


def write_spans(tracer: Tracer, trajectory: Trajectory, calls: Sequence[CallTime], *, epoch_s: float) -> None:
    """Make all spans of one episode, with the times of its calls."""
    if not calls:
        return
    writer = _Writer(tracer, trajectory.episode_id, epoch_s)
    end = trajectory.end
    episode = {
        "env": trajectory.task.env,
        "task": trajectory.task.key,
        "group": trajectory.group_id,
        "member": trajectory.member,
        "end": end.value,
        "turns": len(trajectory.turns),
        "tokens": trajectory.num_tokens,
        **({} if trajectory.reward is None else {"reward": trajectory.reward}),
    }
    top, within = writer.begin("episode", calls[0].begun_s, episode)
    if end.is_infrastructure:
        top.set_status(Status(StatusCode.ERROR, trajectory.error or end.value))
    for call in calls:
        if call.turn < 0:
            writer.whole(call, within, {"env": trajectory.task.env})
    for number in sorted({call.turn for call in calls if call.turn >= 0}):
        _write_turn(writer, trajectory, number, [call for call in calls if call.turn == number], within)
    writer.end(top, calls[-1].ended_s)


def _write_turn(
    writer: "_Writer", trajectory: Trajectory, number: int, calls: Sequence[CallTime], within: Context
) -> None:
    turns = trajectory.turns
    turn = turns[number] if number < len(turns) else None  # none: its engine call failed
    span, inside = writer.begin("turn", calls[0].begun_s, {"turn": number}, within)
    for call in calls:
        if call.what == "generate":
            writer.whole(call, inside, {"engine": call.engine, **({} if turn is None else _sampled(turn))})
        else:
            writer.whole(call, inside, {"env": trajectory.task.env, **({} if turn is None else _answered(turn))})
    writer.end(span, calls[-1].ended_s)


def _sampled(turn: Turn) -> Attributes:
    completion = turn.completion
    return {
        "pool": completion.pool,
        "version": completion.version_spans[-1].version,
        "versions": [span.version for span in completion.version_spans],
        "tokens": len(completion.ids),
        "context_tokens": len(turn.context_ids),
        "cached_tokens": completion.cached_tokens,
        "finish_reason": completion.finish_reason,
    }


def _answered(turn: Turn) -> Attributes:
    return {"reward": turn.reward, "calls": turn.num_calls, "call_errors": len(turn.call_errors)}


class _Writer:
    """Begins and ends spans of one episode at given times."""

    def __init__(self, tracer: Tracer, episode_id: str, epoch_s: float) -> None:
        self._tracer, self._episode_id, self._epoch_s = tracer, episode_id, epoch_s

    def begin(
        self, name: str, begun_s: float, attributes: Attributes, within: Context | None = None
    ) -> tuple[Span, Context]:
        named = {PREFIX + key: value for key, value in {"episode": self._episode_id, **attributes}.items()}
        context = Context() if within is None else within
        span = self._tracer.start_span(name, context, attributes=named, start_time=self._ns(begun_s))
        return span, set_span_in_context(span, context)

    def whole(self, call: CallTime, within: Context, attributes: Attributes) -> None:
        number = {"turn": call.turn} if call.turn >= 0 else {}
        span, _ = self.begin(call.what, call.begun_s, {**number, **attributes}, within)
        self.end(span, call.ended_s)

    def end(self, span: Span, ended_s: float) -> None:
        span.end(self._ns(ended_s))

    def _ns(self, clock_s: float) -> int:
        return round((self._epoch_s + clock_s) * 1e9)
