"""Tasks of families that number them."""

from agentrl_jax.errors import EnvError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Split, Task


def numbered_task(name: str, seed: int, split: Split, index: int, *, count: int) -> Task:
    """Task `index` of the `count` that the family `name` has of a split. Raises EnvError for an index out of range."""
    if not 0 <= index < count:
        known = f"{split} tasks 0 to {count - 1}" if count else f"no {split} tasks"
        raise EnvError(f"{name} has {known}, asked for {index}")
    return Task(env=name, split=split, index=index, seed=derive_seed(name, seed, split, index))
