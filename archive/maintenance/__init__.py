"""Maintenance of an archive: verify, repair, garbage collection and erasure."""
