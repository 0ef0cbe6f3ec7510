"""Slot files of llama-server as base and deltas (paper 1, section 8.1)."""
