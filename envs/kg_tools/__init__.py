"""Questions over a knowledge graph with AgentBench's seven tools: generated, published, or over a large store."""

from agentrl_jax.env import EnvFamily, FamilyOptions
from agentrl_jax.errors import ConfigError


def family(options: FamilyOptions) -> EnvFamily:
    """Make the family. Raises ConfigError for an unknown level or data set, for data that is missing or broken, and if
    a level needs packages of the extra `envs` that are not installed."""
    try:
        from envs.kg_tools.tasks import make_family

        return make_family(options)
    except ModuleNotFoundError as error:
        raise ConfigError(f"environment knowledgegraph needs {error.name}: pip install 'agentrl_jax[envs]'") from error


__all__ = ["family"]
