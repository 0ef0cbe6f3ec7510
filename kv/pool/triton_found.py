"""Tells whether Triton is installed, and whether it emulates a GPU on a CPU, as tests let it."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

EMULATED = os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def there() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None
