"""Experiments that train on the KV of a target: a decoder of tokens to KV, and codes with learnt ranks."""
