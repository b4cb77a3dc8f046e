"""The live page in a real browser: what it shows, and that nothing of it is refused by its own policy."""

from html.parser import HTMLParser
from pathlib import Path

import pytest
import trio

from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_config import ListenConfig
from agentrl_jax.controller.remote_server import ControllerServer
from tests.controller.remote_world import FakeRemote, beat, controlling, play

pytestmark = pytest.mark.chromium


class Cells(HTMLParser):
    """The texts of table cells, and of elements with an id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.by_id: dict[str, str] = {}
        self._id, self._is_cell = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_cell = tag == "td"
        self._id = dict(attrs).get("id") or ""

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.cells.append(data)
        if self._id:
            self.by_id[self._id] = data

    def handle_endtag(self, tag: str) -> None:
        self._is_cell, self._id = False, ""


async def test_the_page_shows_what_goes_on(chromium: str, tmp_path: Path) -> None:
    worker, hostile = FakeRemote(num_places=7, step_s=0.0), "<img src=x onerror=alert(1)>"
    async with controlling(worker) as controller, trio.open_nursery() as nursery:
        beat(controller, FakeRemote(), name=hostile, address="http://other/api")
        assert (await play(controller, 0))[-1] == "completed"
        record, _ = await controller.start("three", 3)
        port = await nursery.start(ControllerServer(controller, ListenConfig(port=0), LoopMonitor()).serve)
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
        command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=6000", "--dump-dom"]
        done = await trio.run_process(
            [*command, f"http://127.0.0.1:{port}/"], capture_stdout=True, capture_stderr=True, check=False
        )
        nursery.cancel_scope.cancel()
    shown = Cells(done.stdout.decode())
    assert shown.by_id["state"].startswith("live")
    for text in ("three", "1 ALIVE", "1/7", "session ended: completed", str(record.session_id), hostile):
        assert text in shown.cells
    console = [line for line in done.stderr.decode().splitlines() if ":CONSOLE" in line]
    assert console == []
