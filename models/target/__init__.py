"""Target models: load, fingerprint, prefill, cache."""
