"""Commands of `pltz` that kv brings: `cli/above.py` names them."""
