"""Numbers and times in words, for the command line and error messages.

>>> counted(1, "session"), counted(1200, "session"), size(1923)
('1 session', '1,200 sessions', '1.9 kB')
"""

import time


def counted(count: int, noun: str) -> str:
    """Return a number with its noun in the right form: ``0 packs``, ``1 pack``, ``2,000 losses``."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


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

    >>> [duration(seconds) for seconds in (42.4, 250, 7200, 9000, 400_000, 10**9)]
    ['42 s', '4 min', '2 h', '2.5 h', '4.63 d', '31.7 y']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    for unit, length, up_to in (("h", 3600, 2 * 86400), ("d", 86400, 730 * 86400)):
        if seconds < up_to:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / (365 * 86400):.3g} y"


def folder_of(project: str) -> str:
    """Return the last name of a path, of whatever system.

    >>> folder_of("C:\\\\code\\\\shop\\\\"), folder_of("/home/me/shop")
    ('shop', 'shop')
    """
    return project.replace("\\", "/").rstrip("/").rpartition("/")[2]
