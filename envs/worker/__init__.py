"""An env worker of AgentRL's protocol: serves one task to a controller, ours or the published one."""
