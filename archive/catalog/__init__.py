"""The catalogue: which packs, indexes and records there are, and towers read from them."""
