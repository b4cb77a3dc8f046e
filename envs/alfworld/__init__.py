"""ALFWorld: household tasks in text, in generated houses or in the published games."""

from envs.alfworld.tasks import AlfworldFamily, family

__all__ = ["AlfworldFamily", "family"]
