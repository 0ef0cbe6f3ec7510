"""KV as a memory: agents that survive restarts."""
