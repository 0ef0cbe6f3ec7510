"""Data of a training run: sessions, tokenizers and token streams."""
