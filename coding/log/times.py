"""Times: ISO 8601 strings as whole nanoseconds and a style, and back. Spec: FORMAT.md, "Times"."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|\+00:00|)", re.ASCII)
EPOCH: Final = datetime(1970, 1, 1)
SUFFIXES: Final = ("Z", "", "+00:00")
SECOND: Final = timedelta(seconds=1)


def read_time(text: str) -> tuple[int, int] | None:
    """Return a time's style and the units since 1970, the unit being that of its last digit.

    The style is the digits of its fraction * 3 + the number of its suffix.

    >>> read_time("1970-01-01T00:00:01.500Z")
    (9, 1500)
    """
    match = TIME.fullmatch(text)
    if match is None:
        return None
    whole, fraction, suffix = match.groups()
    digits = len(fraction or "")
    try:
        seconds = (datetime.fromisoformat(whole) - EPOCH) // SECOND
    except ValueError:
        return None
    found = digits * 3 + SUFFIXES.index(suffix), seconds * 10**digits + int(fraction or 0)
    return found if write_time(*found) == text else None


def write_time(style: int, units: int) -> str:
    """Return the time of a style and a number of units.

    Raises:
        ValueError: there is no such style, or no such time.

    >>> write_time(9, 1500)
    '1970-01-01T00:00:01.500Z'
    """
    digits, suffix = divmod(style, 3)
    if digits > 9:
        raise ValueError("no such style")
    seconds, fraction = divmod(units, 10**digits)
    try:
        whole = (EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError as exc:
        raise ValueError("no such time") from exc
    return f"{whole}.{fraction:0{digits}d}{SUFFIXES[suffix]}" if digits else whole + SUFFIXES[suffix]


def scaled(units: int, digits: int, to: int) -> int:
    """Return units of ``digits`` digits in those of ``to`` digits, rounded down.

    >>> scaled(1500, 3, 0), scaled(1500, 3, 6)
    (1, 1500000)
    """
    power: int = 10 ** abs(to - digits)
    return units * power if to >= digits else units // power
