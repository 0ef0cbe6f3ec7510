"""Joint encoding of KV blocks, measured over pages of a pool and kept in no store: ``pltz.experiments joint``."""
