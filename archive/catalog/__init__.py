"""The catalogue: packs, indexes and records, the fate of absent packs, and towers of segments."""
