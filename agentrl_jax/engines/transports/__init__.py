"""Ways of an export into a server, between its pause and its verification. No jax."""
