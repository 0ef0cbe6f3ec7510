"""Figures of the kept results, in one style."""
