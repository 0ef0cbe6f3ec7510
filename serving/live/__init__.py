"""The live store: transcripts of agents that still run, in a journal and an archive."""
