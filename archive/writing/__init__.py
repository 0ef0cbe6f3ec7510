"""Writing: sessions to records, records to packs, each proved before it is acknowledged."""
