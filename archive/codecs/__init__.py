"""Codecs of segments: a bundle, plain zstd, or a bundle behind a bridge."""
