"""Environment families. A family's module is imported only when the registry is asked for it."""

from agentrl_jax.env import EnvRegistry


def register_all(registry: EnvRegistry) -> None:
    """Register every family of this package. Raises ConfigError for a name that is taken."""
    registry.register("alfworld", "envs.alfworld:family")
    registry.register("kg", "envs.knowledge_graph:family")
