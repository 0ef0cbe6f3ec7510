"""Forms of fixed width and the exact one: q8, q4, lossless."""
