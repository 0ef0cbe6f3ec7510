"""Commands of `pltz` that serving brings: `cli/above.py` names them."""
