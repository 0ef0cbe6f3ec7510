"""The nightly job: puts sessions from their sources into the archive, and reports it. Start at `job.run`."""
