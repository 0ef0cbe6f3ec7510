"""A function that fails, to stand in the place of another."""

from collections.abc import Callable
from typing import Any


def raising(error: Exception) -> Callable[..., Any]:
    """Return a function that takes anything and raises this error."""

    def fail(*_: object, **__: object) -> Any:
        raise error.with_traceback(None)

    return fail


NO_SPACE = OSError(28, "No space left on device")
