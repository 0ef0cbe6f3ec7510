"""Logs of coding agents as columns, opaque bits and text."""
