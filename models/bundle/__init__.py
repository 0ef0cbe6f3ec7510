"""Decoder bundles: weights, tokenizer, fingerprint, and the bridge from other tokenizers."""
