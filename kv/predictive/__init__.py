"""The entropy-coded form: its calibration, and its engines in torch, C and CUDA."""
