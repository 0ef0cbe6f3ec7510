"""Forms of KV, the pool of pages, the server and the tiers."""
