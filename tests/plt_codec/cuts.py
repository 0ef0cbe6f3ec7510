"""Layouts by lanes and steps, for tests with parameters."""

from pltz.plt_codec.lanes import Layout


def cut(lanes: int | None, steps: int | None) -> Layout | None:
    """Return a layout; None, the default one, without lanes."""
    return None if lanes is None or steps is None else Layout(lanes, steps)
