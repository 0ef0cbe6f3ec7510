"""Sources of the nightly job: where sessions are read from."""
