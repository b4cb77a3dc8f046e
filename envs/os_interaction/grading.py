"""Scripts in a sandbox: those that prepare a task, and those that decide whether it is done.

The latter come into the sandbox when the agent has had its last turn and all its processes are stopped for good. They
are run by the system's own programs (see `Sandbox.execute`), and python's without what is installed for it.
upstream_compat: as published, they are run beside what the agent has left running, by whatever programs it has left,
and error output counts as output.
"""

from envs.os_interaction.chores import Chore, Script
from envs.sandbox.protocol import Ran, Sandbox, SandboxGone

SCRIPT_LIMIT_S = 120.0
"""Of one script; among the published tasks one takes a minute."""

# Neither what is installed, nor what was compiled before. -S leaves out site, and with it `exit`.
_ISOLATED = ("-I", "-S", "-X", "pycache_prefix=/nonexistent")
_LAUNCH = (
    "import builtins, sys; builtins.exit = builtins.quit = sys.exit; "
    "code = sys.argv.pop(1); exec(compile(code, '<string>', 'exec'), {'__name__': '__main__'})"
)


def run_script(sandbox: Sandbox, script: Script, *, seed: int | None = None) -> Ran:
    """A script that prepares a task. seed: of bash's RANDOM, so that all instances of a task are alike."""
    if script.language == "python":
        return sandbox.execute(("/usr/bin/python3", "-c", script.code), timeout_s=SCRIPT_LIMIT_S)
    code = script.code if seed is None else f"RANDOM={seed % 32768}\n{script.code}"
    return sandbox.execute(("/bin/bash", "-c", code), timeout_s=SCRIPT_LIMIT_S)


def is_solved(sandbox: Sandbox, chore: Chore, answer: str, *, upstream_compat: bool = False) -> bool:
    """Whether the checks succeed. A sandbox that was broken from within is no solution."""
    if not chore.checks:
        return chore.match is not None and chore.match.is_right(answer)
    parameters = [answer.replace("\0", "")]
    try:
        if not upstream_compat:
            sandbox.freeze()
        for check in chore.checks:
            script = chore.example if check is None else check
            assert script is not None
            ran = _check(sandbox, script, parameters, upstream_compat=upstream_compat)
            if ran.exit_code != 0:
                return False
            parameters.append(ran.text.replace("\0", ""))
    except SandboxGone:
        return False
    return True


def _check(sandbox: Sandbox, script: Script, parameters: list[str], *, upstream_compat: bool) -> Ran:
    if script.language == "bash":
        argv = ["/bin/bash", "-c", script.code, "--", *parameters]
    elif upstream_compat:
        argv = ["/usr/bin/python3", "-c", script.code, *parameters]
    else:
        argv = ["/usr/bin/python3", *_ISOLATED, "-c", _LAUNCH, script.code, *parameters]
    is_trusted = not upstream_compat
    return sandbox.execute(argv, timeout_s=SCRIPT_LIMIT_S, is_trusted=is_trusted, keeps_errors=not is_trusted)
