"""One interactive shell that stays, over a stream: commands go in one after the other, each output is found by a mark.

The shell is `bash -i` without a terminal, so that an interrupt ends what it does and not the shell. A command is one
line, `eval` of it in quotes; the line after it writes a mark that nobody can know before, and the exit code. Both come
through a duplicate of the shell's own output, hence in order, whatever the command did to that.
"""

import re
import secrets
import shlex
import time
from collections.abc import Callable

from envs.sandbox.protocol import Ran, SandboxGone
from envs.sandbox.streams import OUT_OF_TIME, TOO_MUCH, Kept, Stream

ARGV = ("/bin/bash", "--noprofile", "--norc", "--noediting", "+m", "-i")
_MARK_FD = 198
_START = (
    f"PS1= PS2= PS4='+ '; set +H +o history; unset HISTFILE; exec {_MARK_FD}>&1; "
    "for _ in /etc/profile ~/.profile; do [ -r $_ ] && . $_; done; PS1= PS2=\n"
)
_START_S = 20.0
# What bash says when a program was killed: that it has no terminal whose state it could restore.
_NO_TERMINAL = re.compile(rb"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: .*\n", re.MULTILINE)
# How long what is interrupted may take to end.
_INTERRUPTED_S = 1.0
# Longer ones are not passed on: bash reads its input byte by byte.
MAX_COMMAND_BYTES = 1 << 20
# Of an exit code behind a mark, with the NUL that ends it.
_MAX_CODE_BYTES = 4


class Shell:
    """The shell behind `stream`. Raises SandboxGone if it does not even start.

    interrupt: sends SIGINT to the shell and what runs in its foreground.
    """

    def __init__(self, stream: Stream, interrupt: Callable[[], object]) -> None:
        self._stream = stream
        self._interrupt = interrupt
        self.is_alive = True
        # Whatever bash says of the terminal that it misses comes before the mark.
        if self._finish(_START.encode(), time.monotonic() + _START_S, Kept()) is None:
            self.is_alive = False
            raise SandboxGone("no shell starts")

    def run(self, command: str, timeout_s: float) -> Ran:
        """See `Sandbox.run`. Afterwards `is_alive` says whether the shell can be used on."""
        deadline = time.monotonic() + timeout_s
        # A NUL ends a line's text for bash, and half a surrogate pair is no text at all.
        text = command.replace("\0", "").encode("utf-8", "replace")[:MAX_COMMAND_BYTES].decode("utf-8", "ignore")
        kept = Kept()
        line = f"builtin eval {shlex.quote(text)} </dev/null\n"
        exit_code = self._finish(line.encode(), deadline, kept)
        output, num_bytes = _NO_TERMINAL.sub(b"", bytes(kept.start)), kept.num_bytes
        if exit_code is None and not self.is_alive:
            # None too if it has only stopped to listen or to speak.
            exit_code = self._stream.exit_code()
        if exit_code is not None:
            return Ran(output=output, num_bytes=num_bytes, exit_code=exit_code)
        if self.is_alive:
            self._bring_back()
        return Ran(
            output=output,
            num_bytes=num_bytes,
            exit_code=None,
            stopped=TOO_MUCH if kept.is_flood else OUT_OF_TIME,
        )

    def close(self) -> None:
        self.is_alive = False
        self._stream.close()

    def _bring_back(self) -> None:
        """Interrupt what runs. An interrupt that finds the shell idle costs the line being read: hence empty ones."""
        self._interrupt()
        if self._finish(b"\n\n", time.monotonic() + _INTERRUPTED_S, Kept()) is None:
            self.is_alive = False

    def _finish(self, line: bytes, deadline: float, kept: Kept) -> int | None:
        """Send a line, and read to the mark behind it: the exit code, or None for too late, too much, or the shell's
        end; `is_alive` is False after the last, and if the shell could not be brought back."""
        nonce = secrets.token_hex(8)
        mark = f"\0{nonce};".encode()
        try:
            self._stream.write(line + f"builtin printf '\\000{nonce};%d\\000' $? >&{_MARK_FD}\n".encode())
            return self._read_to(mark, deadline, kept)
        except OSError:
            self.is_alive = False
            return None

    def _read_to(self, mark: bytes, deadline: float, kept: Kept) -> int | None:
        tail = b""
        while True:
            data = self._stream.read(deadline)
            if not data:
                self.is_alive = data is None
                kept.add(tail)
                return None
            tail += data
            while (start := tail.find(mark)) >= 0:
                end = start + len(mark)
                code, has_end, _ = tail[end : end + _MAX_CODE_BYTES].partition(b"\0")
                if has_end and code.isdigit():
                    kept.add(tail[:start])
                    return int(code)
                if not has_end and len(code) < _MAX_CODE_BYTES:
                    break
                # The command has found the mark where the shell keeps it, and writes what it likes behind it.
                kept.add(tail[:end])
                tail = tail[end:]
            else:
                # The mark may have come in part.
                kept.add(tail[: -len(mark)])
                tail = tail[-len(mark) :]
            if kept.is_flood:
                return None
