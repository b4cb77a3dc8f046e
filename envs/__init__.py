"""Environment families. A family's module is imported only when the registry is asked for it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # processes that own sandboxes import this package, and are the faster the less they hold
    from agentrl_jax.env import EnvRegistry


def register_all(registry: "EnvRegistry") -> None:
    """Register every family of this package, and those of installed packages (entry points `agentrl_jax.envs`).

    Raises ConfigError for a name that is taken.
    """
    registry.register("alfworld", "envs.alfworld:family")
    registry.register("bfcl", "envs.bfcl:family")
    registry.register("dbbench", "envs.dbbench:family")
    registry.register("kg", "envs.knowledge_graph:family")
    registry.register("knowledgegraph", "envs.kg_tools:family")
    registry.register("os_interaction", "envs.os_interaction:family")
    registry.register("webshop", "envs.webshop:family")
    registry.register_installed()
