"""KV as a memory: agents that survive restarts, named blocks, pins, and the shadow of a pool."""
