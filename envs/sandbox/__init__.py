"""Sandboxes: machines of their own for what a policy writes, from bubblewrap or from a Docker engine."""
