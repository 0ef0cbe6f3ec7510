"""Encryption of a sealed archive: secrets, key files, the keys of domains and sealed boxes."""
