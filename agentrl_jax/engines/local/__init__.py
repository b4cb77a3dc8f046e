"""The embedded JAX engine: continuous batching over a slot cache, for one machine and for tests."""
