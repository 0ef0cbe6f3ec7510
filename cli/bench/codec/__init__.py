"""The measurement of the codec: bytes and speed by source, next to its peers."""
