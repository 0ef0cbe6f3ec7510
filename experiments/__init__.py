"""Experiments: systems of the papers and measurements of pltz that no user calls; not in the wheel."""
