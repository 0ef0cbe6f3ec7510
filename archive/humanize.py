"""Numbers in words, for the command line, the nightly report and error messages.

>>> counted(1, "session"), counted(1200, "session"), size(1923)
('1 session', '1,200 sessions', '1.9 kB')
"""

import time


def counted(count: int, noun: str) -> str:
    """Return a number with its noun in the right form: ``0 packs``, ``1 pack``, ``2,000 packs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Return bytes in a readable unit: ``96 B``, ``1.9 kB``, ``4.1 MB``, ``12.5 GB``; powers of 1000."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,.0f} B"


def moment(seconds: int) -> str:
    """Return seconds since 1970 as a UTC time.

    >>> moment(0)
    '1970-01-01T00:00:00Z'
    """
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"@{seconds}"


def duration(seconds: float) -> str:
    """Return a duration in a readable unit.

    >>> duration(0.25), duration(42), duration(1234), duration(8000), duration(400_000)
    ('0.2 s', '42 s', '21 min', '2 h 13 min', '4 d 15 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
