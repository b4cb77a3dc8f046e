"""What people and Prometheus see of the controller: a live page, its figures as JSON, and /metrics.

The page is one file without anything from elsewhere; its content security policy lets it do no more than ask this
server for the figures.
"""

from importlib.resources import files
from typing import Any

import msgspec
import trio

from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_controller import RemoteController
from agentrl_jax.controller.remote_statistics import prometheus_text
from agentrl_jax.engines.http_server import Answer, HttpProblem, HttpRequest, json_answer

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_MAX_LISTED = 200
"""Sessions on the page, those that were used longest ago first."""


class Pages:
    """Answers requests for anything but the API; `handle` is a `Handler` of `http_server`."""

    def __init__(self, controller: RemoteController, monitor: LoopMonitor) -> None:
        self._controller, self._monitor = controller, monitor
        folder = files(__package__)
        self._files = {
            path: Answer(body=(folder / name).read_bytes(), content_type=kind, headers=_HEADERS)
            for path, (name, kind) in _FILES.items()
        }

    async def handle(self, request: HttpRequest) -> Answer:
        """Raises HttpProblem for what there is not."""
        await trio.lowlevel.checkpoint()
        dynamic = {"/metrics": self._metrics, "/overview": self._overview}
        if request.path not in self._files and request.path not in dynamic:
            raise HttpProblem(404, f"there is no {request.path} here")
        if request.method != "GET":
            raise HttpProblem(405, f"{request.path} takes GET, got {request.method}")
        if request.path in dynamic:
            return dynamic[request.path]()
        return self._files[request.path]

    def _metrics(self) -> Answer:
        lag = self._monitor.statistics().lag_p99_s
        text = prometheus_text(self._controller.statistics(), loop_lag_p99_s=lag)
        return Answer(body=text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def _overview(self) -> Answer:
        tasks = msgspec.to_builtins(self._controller.statistics())
        live = self._controller.book.store.live.values()
        oldest = sorted(live, key=lambda record: record.used_at)[:_MAX_LISTED]
        overview: dict[str, Any] = {
            "now": trio.current_time(),
            "lag_p99_s": self._monitor.statistics().lag_p99_s,
            "tasks": tasks,
            "workers": [
                {
                    "id": entry.worker.worker_id,
                    "address": entry.worker.address,
                    "task": entry.worker.task.name,
                    "status": entry.status.value,
                    "is_draining": entry.is_draining,
                    "capacity": sum(entry.places.capacity.values()),
                    "taken": entry.places.num_taken,
                    "age_s": entry.age_s,
                }
                for entry in self._controller.roster.entries()
            ],
            "num_sessions": len(live),
            "sessions": [
                {
                    "id": str(record.session_id),
                    "task": record.name,
                    "index": record.index,
                    "worker": record.entry.worker.worker_id,
                    "state": "cancelling" if record.is_cancelling else "env" if record.is_busy else "client",
                    "started_at": record.started_at,
                    "used_at": record.used_at,
                }
                for record in oldest
            ],
        }
        return json_answer(overview)
