"""Places where an archive lives: a directory, a bucket, a simulated disk."""
