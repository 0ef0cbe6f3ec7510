"""Small KV inside a running engine: pages in a pool, attention over them, batches of sessions, shared prefixes."""
