"""Commands of `pltz` that training brings: `cli/above.py` names them."""
