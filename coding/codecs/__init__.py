"""Segment codecs: a bundle, plain zstd, or a bundle behind a token bridge."""
