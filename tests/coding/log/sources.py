"""The table of a log as its sources make it, beside the one that mypyc compiled of them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pltz.coding import log
from pltz.coding.log.compiled import HERE

PREFIX = f"{log.__name__}."


@contextmanager
def from_sources() -> Iterator[None]:
    """While the context lasts, imports find the modules of coding/log anew, and nothing compiled."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(PREFIX)}
    attributes, path = vars(log).copy(), list(log.__path__)
    for name in kept:
        vars(log).pop(name.removeprefix(PREFIX), None)
    log.__path__[:] = [str(HERE)]
    try:
        yield
    finally:
        log.__path__[:] = path
        vars(log).update(attributes)
        for name in [name for name in sys.modules if name.startswith(PREFIX)]:
            del sys.modules[name]
        sys.modules.update(kept)
