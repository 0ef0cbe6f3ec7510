"""The measurement of thaws: the time until a session's KV is back."""
