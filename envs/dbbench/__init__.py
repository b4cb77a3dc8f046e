"""DBBench: questions about tables and changes to them, by SQL; generated tables, or the published tasks."""

from envs.dbbench.tasks import DbbenchFamily, family

__all__ = ["DbbenchFamily", "family"]
