"""Measurements of pltz and its peers, plots and kept results: in a checkout, not in the wheel."""
