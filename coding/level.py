"""Levels 0 to 7 of coding, as in zstd: each is a bundle, a layout, and how long shorter ways are searched for.

    chosen = level(2)
    chosen.bundle, chosen.layout, chosen.neighbours     # "nano", "default", False
"""

from typing import NamedTuple

from pltz.models.bundle import locations
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.lanes import LayoutName


class Level(NamedTuple):
    """Hold the choices of one level.

    Attributes:
        bundle: name of the bundle that codes.
        layout: as in `CodingOptions`.
        neighbours: try each session also after an earlier one that is like it.
        model_logs: as in `CodingOptions`.
        model_ids: as in `Archive.open`; of an archive None where no level is named. Files have no other way.
    """

    bundle: str
    layout: LayoutName
    neighbours: bool
    model_logs: bool
    model_ids: bool | None = True


LEVELS = {
    0: Level("mini", "default", neighbours=False, model_logs=False, model_ids=False),
    1: Level("nano", "fast", neighbours=False, model_logs=False),
    2: Level("nano", "default", neighbours=False, model_logs=False),
    3: Level("nano", "default", neighbours=True, model_logs=True),
    4: Level("mini", "fast", neighbours=False, model_logs=False),
    5: Level("mini", "default", neighbours=False, model_logs=False),
    6: Level("mini", "default", neighbours=True, model_logs=True),
    7: Level("base", "default", neighbours=True, model_logs=True),
}


def level(number: int) -> Level:
    """Return a level of 0 to 7. Raises UsageError for another number, and where its bundle is not installed."""
    if number not in LEVELS:
        raise UsageError(f"expected a level from {min(LEVELS)} to {max(LEVELS)}, got {number}")
    chosen = LEVELS[number]
    if locations.by_name(chosen.bundle) is None:
        known = [str(n) for n, other in LEVELS.items() if locations.by_name(other.bundle)]
        raise UsageError(
            f"level {number} needs the bundle {chosen.bundle}: {locations.how_to_get(chosen.bundle)}; "
            f"levels that work here: {', '.join(known) or 'none'}"
        )
    return chosen
