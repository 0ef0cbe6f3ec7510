"""The journal of the eviction hook: entries, segments, locks, reader and writer."""
