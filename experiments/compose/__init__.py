"""Composition: KV of segments that were computed apart, put side by side at new positions."""
