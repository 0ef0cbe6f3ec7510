"""The KV of segments: its forms, their calibration, and the store that keeps it hot or warm."""
