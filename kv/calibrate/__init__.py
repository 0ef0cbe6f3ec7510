"""Calibrations of a target: fitting, the measuring of losses, and the watch over attention."""
