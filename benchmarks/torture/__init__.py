"""Kills of everything that works on one archive, and a comparison with what was acknowledged."""
