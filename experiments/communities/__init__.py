"""Communities of bots that share prompts, and the distances between their sessions."""
