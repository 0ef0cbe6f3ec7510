"""The nightly job: sessions from where they are into the archive, and a report of it. `job.run` is the whole of it."""
