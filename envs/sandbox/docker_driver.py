"""Sandboxes that are containers of a Docker engine, some of them started ahead."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing

from docker.api import APIClient
from docker.errors import ImageNotFound

from agentrl_jax.errors import ConfigError
from envs.sandbox import docker_engine, docker_restore
from envs.sandbox.docker_engine import Container, engine_errors
from envs.sandbox.docker_janitor import COMMAND
from envs.sandbox.docker_restore import Pristine
from envs.sandbox.docker_stream import DockerStream
from envs.sandbox.protocol import (
    HOME,
    MAX_ARGUMENT_BYTES,
    MAX_OUTPUT_BYTES,
    Limits,
    Ran,
    SandboxGone,
    SandboxLost,
    clean_environment,
)
from envs.sandbox.shell import ARGV, Shell
from envs.sandbox.streams import read_to_end

NUM_WARM = 4
"""Containers of an image that are kept ready, once one of it has been asked for."""

# Nothing is said before the stream is listened to; then the process id is. Output and errors take one way, in order.
_LAUNCH = 'read -r _; exec 2>&1; echo $$; exec "$@"'
_START_S = 30.0
_KILL_TREE = (
    "end() { kill -STOP $1; for f in /proc/$1/task/*/children; do for c in $(<$f); do end $c; done; done; "
    'kill -KILL $1; } 2>/dev/null; end "$1"'
)
_FROZEN = b"frozen"
_FREEZE = f"kill -STOP -1; printf {_FROZEN.decode()}"
# The shell of an executed program stays, and with it the stream, should the program close its output.
_HOLD = 'exec 9>&2 2>/dev/null; "$@" </dev/null 2>{} 9>&-; exit $?'


class DockerDriver:
    """Implements `envs.sandbox.protocol.Driver`.

    url: of the engine; None: as the environment says. Containers of it are removed at the end, and by a janitor if this
    process is killed. Raises ConfigError if no engine answers, or it lacks the default image.
    """

    name = "docker"

    def __init__(self, url: str | None = None, *, num_warm: int = NUM_WARM) -> None:
        self._num_warm = num_warm
        self._local = threading.local()
        self._apis: list[APIClient] = []
        self._mark = docker_engine.new_mark()
        self._url = url
        try:
            self._base_url = str(self.api.base_url)
            docker_engine.sweep(self.api)
            check_image(self.api, "default")
        except SandboxLost as error:
            self._close_apis()
            raise ConfigError(f"sandboxes of docker need an engine that answers: {error}") from error
        except ConfigError:
            self._close_apis()
            raise
        self._janitor = subprocess.Popen(
            [sys.executable, "-c", COMMAND, json.dumps(sys.path), url or "", self._mark],
            stdin=subprocess.PIPE,
        )
        self._lock = threading.Lock()
        self._warm: dict[tuple[str, Limits], queue.SimpleQueue[Container]] = {}
        self._pristine: dict[str, Pristine] = {}
        self._orders: queue.SimpleQueue[tuple[str, Limits] | None] = queue.SimpleQueue()
        self._is_open = True
        self._filler = threading.Thread(target=self._fill, daemon=True, name="warm containers")
        self._filler.start()

    @property
    def api(self) -> APIClient:
        """This thread's own: the SDK's sessions are not made to be shared."""
        api: APIClient | None = getattr(self._local, "api", None)
        if api is None:
            api = self._local.api = docker_engine.connect(self._url)
            self._apis.append(api)
        return api

    def open(self, image: str, limits: Limits) -> "DockerSandbox":
        key = (image, limits)
        with self._lock:
            if key not in self._warm:
                check_image(self.api, image)
                self._warm[key] = queue.SimpleQueue()
                for _ in range(self._num_warm):
                    self._orders.put(key)
            warm = self._warm[key]
        try:
            container = warm.get_nowait()
            self._orders.put(key)
        except queue.Empty:
            container = docker_engine.create(self.api, image, limits, self._mark)
        return DockerSandbox(self, image, limits, container)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._orders.put(None)
        self._filler.join()
        # The janitor would do the same, later.
        for container, _ in docker_engine.marked(self.api, self._mark):
            docker_engine.remove(self.api, container)
        for warm in self._warm.values():
            while not warm.empty():
                warm.get_nowait().let_go()
        assert self._janitor.stdin is not None
        self._janitor.kill()
        self._janitor.stdin.close()
        self._janitor.wait()
        self._close_apis()

    def _close_apis(self) -> None:
        for api in self._apis:
            api.close()

    def pristine(self, image: str) -> Pristine:
        """What runs grading scripts, from a container of the image that nobody has used."""
        with self._lock:
            if image not in self._pristine:
                container = docker_engine.create(self.api, image, Limits(), self._mark)
                with closing(DockerSandbox(self, image, Limits(), container)) as untouched:
                    shell, python = (
                        untouched.execute(("/bin/bash", "-c", script), timeout_s=_START_S).text
                        for script in (docker_restore.LIST_SHELL, docker_restore.LIST_PYTHON)
                    )
                    with engine_errors():
                        self._pristine[image] = docker_restore.pristine(self.api, container.name, shell, python)
            return self._pristine[image]

    def _fill(self) -> None:
        """Start containers ahead, for as long as the engine lets us: without them, opening one takes longer."""
        while (key := self._orders.get()) is not None and self._is_open:
            image, limits = key
            try:
                self._warm[key].put(docker_engine.create(self.api, image, limits, self._mark))
            except SandboxLost:
                continue


class DockerSandbox:
    """Implements `envs.sandbox.protocol.Sandbox`."""

    def __init__(self, driver: DockerDriver, image: str, limits: Limits, container: Container) -> None:
        self._driver = driver
        self._image = image
        self._limits = limits
        self._held = container
        self._container = container.name
        self._shell: Shell | None = None
        self._shell_process = 0
        self._is_open = True
        self._is_frozen = False

    def run(self, command: str, *, timeout_s: float) -> Ran:
        if self._shell is None:
            self._shell = self._new_shell()
        ran = self._shell.run(command, timeout_s)
        if not self._shell.is_alive:
            self._shell.close()
            self._shell = None
            self._kill_tree(self._shell_process)
            self._shell = self._new_shell()
        return ran

    def execute(
        self, argv: Sequence[str], *, timeout_s: float, is_trusted: bool = False, keeps_errors: bool = True
    ) -> Ran:
        if any(len(word.encode("utf-8", "replace")) > MAX_ARGUMENT_BYTES for word in argv):
            raise SandboxGone("an argument is too long for a program")
        if is_trusted and not self._is_frozen:
            self._restore(self._driver.pristine(self._image))
        script = _HOLD.format("&9" if keeps_errors else "/dev/null")
        argv = ("/bin/bash", "--noprofile", "--norc", "-c", script, "bash", *argv)
        stream, process, rest = self._start(argv, is_trusted=is_trusted)
        return read_to_end(stream, rest, timeout_s, lambda: self._kill_tree(process))

    def seal(self) -> None:
        """What is put back before grading does not depend on how the agent found the machine."""

    def freeze(self) -> None:
        """What stops the others must be the system's own, and may be changed once more before it has."""
        pristine = self._driver.pristine(self._image)
        self._put_back(pristine.shell)
        # The first process may have been taken over, by way of its memory; nothing within can stop it.
        docker_engine.stop_first(self._driver.api, self._container)
        if self._control(_FREEZE) != _FROZEN:
            raise SandboxGone("the machine does not let its processes be stopped")
        docker_engine.widen(self._driver.api, self._container, self._limits)
        self._restore(pristine)
        self._is_frozen = True

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._shell is not None:
            self._shell.close()
        docker_engine.remove(self._driver.api, self._container)
        self._held.let_go()

    def _restore(self, pristine: Pristine) -> None:
        self._put_back(pristine.shell, pristine.python)
        if pristine.modules:
            listed = self._control(docker_restore.LIST_MODULES, pristine.modules)
            if found := docker_restore.added(listed, pristine):
                self._control(docker_restore.REMOVE, pristine.modules, *found)

    def _put_back(self, *archives: bytes) -> None:
        with engine_errors(is_inside=True):
            for archive in archives:
                self._driver.api.put_archive(self._container, "/", archive)

    def _start(self, argv: Sequence[str], *, is_trusted: bool = False) -> tuple[DockerStream, int, bytes]:
        """A program's stream, its process id in the container, and what it has said already."""
        api = self._driver.api
        with engine_errors(is_inside=True):
            execution = api.exec_create(
                self._container,
                ["/bin/bash", "--noprofile", "--norc", "-c", _LAUNCH, "bash", *argv],
                stdin=True,
                environment=clean_environment(is_trusted=is_trusted),
                workdir=HOME,
            )["Id"]
            stream = DockerStream(api, execution)
        try:
            stream.write(b"\n")
            said = b""
            while b"\n" not in said:
                data = stream.read(time.monotonic() + _START_S)
                if not data:
                    raise SandboxGone(f"no program starts: {said.decode(errors='replace')}")
                said += data
            number, _, rest = said.partition(b"\n")
            return stream, int(number), rest
        except (OSError, ValueError) as error:
            stream.close()
            raise SandboxGone(f"no program starts: {error}") from error
        except BaseException:
            stream.close()
            raise

    def _new_shell(self) -> Shell:
        stream, self._shell_process, _ = self._start(ARGV)
        process = self._shell_process
        try:
            return Shell(stream, lambda: self._control(f"kill -INT -- -{process}"))
        except BaseException:
            stream.close()
            raise

    def _kill_tree(self, process: int) -> None:
        self._control(_KILL_TREE, str(process))

    def _control(self, script: str, *arguments: str) -> bytes:
        """What a script of ours prints."""
        stream, _, rest = self._start(("/bin/bash", "-c", script, "bash", *arguments), is_trusted=True)
        said = bytearray(rest)
        try:
            while data := stream.read(time.monotonic() + _START_S):
                said += data
                if len(said) > MAX_OUTPUT_BYTES:
                    raise SandboxGone("there is too much in the machine")
        finally:
            stream.close()
        return bytes(said)


def check_image(api: APIClient, image: str) -> None:
    """Raises ConfigError if the engine lacks an image."""
    name = f"{docker_engine.REPOSITORY}/{image}"
    with engine_errors():
        try:
            api.inspect_image(name)  # type: ignore[no-untyped-call]
        except ImageNotFound as error:
            raise ConfigError(
                f"the Docker engine has no image {name}: build the images with python -m envs.sandbox.images"
            ) from error


def is_ready(url: str | None) -> bool:
    """Whether an engine answers that has the default image."""
    try:
        api = docker_engine.connect(url)
    except SandboxLost:
        return False
    try:
        check_image(api, "default")
    except (ConfigError, SandboxLost):
        return False
    finally:
        api.close()
    return True
