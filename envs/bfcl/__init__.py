"""BFCL v3 multi-turn: a scripted user asks for work with simulated programs; a held-out benchmark."""

from envs.bfcl.tasks import BfclFamily, family

__all__ = ["BfclFamily", "family"]
