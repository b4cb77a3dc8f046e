"""AgentRL in JAX. Importing this package imports nothing else; import the module that you need."""
