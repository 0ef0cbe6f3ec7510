"""The work that several forms share: entropy-coded streams, and the kernels of a GPU."""
