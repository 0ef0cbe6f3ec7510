"""Keys of a sealed archive: secrets, key files, the tree of keys, and boxes."""
