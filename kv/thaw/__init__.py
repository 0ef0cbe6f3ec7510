"""The way from archived sessions to caches of a target."""
