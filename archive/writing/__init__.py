"""Writing: sessions to records and records to packs, each pack proved before it is acknowledged."""
