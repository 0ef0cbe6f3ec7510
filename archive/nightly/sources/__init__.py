"""Sources of the nightly job, from which sessions are read."""
