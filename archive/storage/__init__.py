"""Stores that hold an archive's files: a directory, an S3 bucket, a simulated disk."""
