"""Forms of fixed width: q8, q4."""
