"""Engines: probabilities and codes of one contract, bit for bit the same on every machine."""
