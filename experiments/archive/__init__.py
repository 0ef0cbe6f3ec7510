"""The measurement of the archive: speed and size of puts and gets."""
