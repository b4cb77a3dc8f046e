"""OS: questions about a machine and changes to it, by shell commands; generated chores, or the published tasks."""

from envs.os_interaction.tasks import OsFamily, family

__all__ = ["OsFamily", "family"]
