"""Real SGLang servers on this CPU, in processes of their own that end with this one, whatever ends it."""

import os
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PYTHON = Path(__file__).parents[2] / ".venv-sglang" / "bin" / "python"
READY = ("The server is fired up and ready to roll!", "Uvicorn running on")
"""What its log says, in any order, when it takes requests."""

START_S = 300.0

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # Inductor needs the Triton that is a stub here
    "OMP_NUM_THREADS": "1",  # two spinning threads on a busy machine are 10 times slower
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "SGLANG_TIMEOUT_KEEP_ALIVE": "300",
}
FLAGS = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-overlap-schedule", "--sleep-on-idle", "--skip-server-warmup", "--random-seed", "0"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "16384", "--max-running-requests", "64"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangServer:
    """folder: of the weights that it was started with, as version "default". process: of the HTTP server, whose group
    holds all others."""

    url: str
    folder: Path
    process: "subprocess.Popen[str]"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """End every process of the server at once, as a crash would; returns when they are gone."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()


@contextmanager
def running_server(
    folder: Path, *, core: int = 0, port: int | None = None, flags: Sequence[str] = ()
) -> Iterator[SGLangServer]:
    """A server of the checkpoint in `folder` that takes requests, killed at the end of the block.

    core: of this machine, the only one that it computes on. port: None for any. flags: of sglang.launch_server.
    Raises RuntimeError with the end of its log if it does not start.
    """
    port = free_port() if port is None else port
    core %= os.cpu_count() or 1
    command = [str(PYTHON), "-W", "ignore", "-m", "sglang.launch_server", "--model-path", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), *FLAGS, *flags]
    process = subprocess.Popen(
        # A test process that is killed cannot clean up: the kernel does, and SGLang's own processes follow theirs.
        ["setpriv", "--pdeathsig", "KILL", *command],
        env=os.environ | ENVIRONMENT | {"SGLANG_CPU_OMP_THREADS_BIND": str(core)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    server = SGLangServer(url=f"http://127.0.0.1:{port}", folder=folder, process=process)
    is_told, log = threading.Event(), deque[str](maxlen=60)
    awaited = set(READY)

    def read_log() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            awaited.difference_update({said for said in awaited if said in line})
            if not awaited:
                is_told.set()
        is_told.set()

    reader = threading.Thread(target=read_log, name=f"log of {server.url}")
    reader.start()
    try:
        if not is_told.wait(START_S) or awaited:
            raise RuntimeError(f"SGLang did not start with {' '.join(command)}:\n{''.join(log)}")
        yield server
    finally:
        server.kill()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
