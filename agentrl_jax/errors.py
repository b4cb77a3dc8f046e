"""Exceptions of agentrl_jax. Every message says what was expected, what came, and what to do.

A `ConfigError` is raised before any device or network is touched; launchers print it as one paragraph and
exit with code 2. Expected failures of an episode (`EngineError`, `EnvError`, `EnvTimeout`) become an
`EpisodeEnd` in `controller/live_session.py`; every other exception ends the run with its traceback.
"""


class AgentRLError(Exception):
    """Base class of every exception that this package raises on purpose."""


class ConfigError(AgentRLError):
    """A setting is wrong, or two settings contradict each other. Nothing has been started."""


class RecordError(AgentRLError, ValueError):
    """A host record violates its contract, for example a log-probability that is not finite."""


class TemplateError(AgentRLError):
    """A chat template cannot be used for token-in-token-out transcripts; the message names what is lost."""


class EngineError(AgentRLError):
    """An engine failed to serve a turn: transport, server error, missing log-probability."""


class EnvError(AgentRLError):
    """An environment failed in reset, step or scoring. The policy is not to blame."""


class EnvTimeout(EnvError):
    """An environment broke its own deadline."""


class SessionExpired(EnvError):
    """Nobody used a session for so long that its worker closed it."""


class UnknownSession(EnvError):
    """A worker has no such session: it was closed, or the worker has been restarted since."""


class WorkerUnreachable(EnvError):
    """A call of an env worker got no answer. It may have had its effect: repeat it with the same request id."""


class RequestOrderError(AgentRLError):
    """A session got a request that cannot come next. The caller is at fault, not the env."""


class NoProgressError(AgentRLError):
    """The run stopped because nothing can be learnt: every episode fails, or no group has a signal."""
