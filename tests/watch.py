"""Watch the product in tests while it runs: its calls and its memory."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def noted(patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any], flat: bool = False) -> list[Any]:
    """Return a list that grows by a note of each call of a function, which runs as before.

    Args:
        patch: what puts the function back.
        owner: class, module or object that has the function.
        name: of the function.
        note: gets as many of the first arguments as it takes, and returns what is noted.
        flat: whether that is a list, of which all is noted.
    """
    notes, work = list[Any](), getattr(owner, name)

    def noting(*args: Any, **options: Any) -> Any:
        found = note(*args[: note.__code__.co_argcount])
        notes.extend(found if flat else [found])
        return work(*args, **options)

    patch.setattr(owner, name, noting)
    return notes


@contextmanager
def memory_below(most: float) -> Iterator[None]:
    """Fail if Python takes more bytes than that at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak:,} bytes"
