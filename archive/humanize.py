"""Numbers in words: what the command line, the page of a night and errors say to people.

>>> counted(1, "session"), counted(1200, "session"), size(1923)
('1 session', '1,200 sessions', '1.9 kB')
"""

import time


def counted(count: int, noun: str) -> str:
    """``0 packs``, ``1 pack``, ``2,000 packs``: a number, and the noun in the form that goes with it."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes for people: ``96 B``, ``1.9 kB``, ``4.1 MB``, ``12.5 GB``; powers of 1000."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,.0f} B"


def moment(seconds: int) -> str:
    """Seconds since 1970 as UTC.

    >>> moment(0)
    '1970-01-01T00:00:00Z'
    """
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"@{seconds}"
