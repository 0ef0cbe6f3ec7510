"""Tokens that give way to more probable ones, measured and offered nowhere: ``pltz.experiments lossy``."""
