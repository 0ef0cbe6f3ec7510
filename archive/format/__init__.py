"""Formats of the archive's files: bytes to values and back, without I/O. FORMAT.md is the specification."""
