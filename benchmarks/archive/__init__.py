"""The archive under load: the nightly job, the hook, many writers, erases, and a simulated bucket."""
