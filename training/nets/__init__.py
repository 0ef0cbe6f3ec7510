"""Nets that are trained: the float model, its rounding, its export and its origins."""
