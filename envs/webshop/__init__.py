"""WebShop: find and buy a product by its description, in generated catalogues or in the published one."""

from agentrl_jax.env import EnvFamily, FamilyOptions
from agentrl_jax.errors import ConfigError


def family(options: FamilyOptions) -> EnvFamily:
    """Make the family. Raises ConfigError for an unknown level or data set, for data that is missing or broken, and if
    the packages of the extra `envs` are not installed."""
    try:
        from envs.webshop.tasks import make_family
    except ModuleNotFoundError as error:
        raise ConfigError(f"environment webshop needs {error.name}: pip install 'agentrl_jax[envs]'") from error
    return make_family(options)


__all__ = ["family"]
