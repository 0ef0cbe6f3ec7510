"""Encryption of a sealed archive: secrets, key files, the key tree and sealed boxes."""
