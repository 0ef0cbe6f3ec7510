"""Retention: the versions that a policy lets expire. Pure: versions and a time in, versions out.

A version stays if any rule keeps it. Unless ``drop_last`` is set, so that a policy never loses a session by accident,
these stay too: the newest version of every session, the fullest one, and each version of a log of an agent that is no
beginning of a newer one. Rules count all versions of a session, those of the same
content as one; ``tags`` only narrows which versions may expire. Forgotten versions, and beginnings of logs whose
put was cut off, are neither counted nor returned.

Two ages stand above all that: what is younger than `keep_at_least` stays whatever any rule says, and what is older than
`keep_at_most` goes, the newest version too.

    Policy(keep_last=2)                       the two newest versions of each session
    Policy(keep_at_most=seconds("1y"))        nothing of over a year, not even the last version
    Policy(keep_within=seconds("30d"))        versions younger than 30 days, and the newest of each session
    Policy(keep_last=2, keep_within=86400)    both kinds
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pltz.archive.catalog.lookup import Version
from pltz.archive.format.record import TICK_BITS
from pltz.coding.codecs.logs import LOG_TOKENIZER
from pltz.plt_codec.errors import UsageError

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}  # seconds
MAX_SECONDS = 1 << 40
Chain = Callable[[Version], Collection[bytes]]
_PART = re.compile(r"([0-9]{1,12})(min|[shdwy])")


@dataclass(frozen=True)
class Policy:
    """The rules that keep versions.

    ``keep_within``: seconds before now, in which something of the version was said, or, where that is not known, its
    time lies. ``drop_last``: let all versions of a session expire. ``keep_at_least``, ``keep_at_most``: ages in seconds
    of versions with the tags, by the same time. Raises UsageError where there is no rule, or a number makes no sense.
    """

    keep_last: int | None = None
    keep_within: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    drop_last: bool = False
    keep_at_least: int | None = None
    keep_at_most: int | None = None

    def __post_init__(self) -> None:
        ages = self.keep_within, self.keep_at_least, self.keep_at_most
        if self.keep_last is None and ages == (None, None, None):
            raise UsageError("a policy needs a rule: keep the last N, what is within a duration, or an age")
        if (self.keep_last is not None and self.keep_last < 1) or any((age or 0) < 0 for age in ages):
            raise UsageError("expected to keep 1 version or more, within 0 seconds or more")
        if self.keep_at_most is not None and (self.keep_at_least or 0) > self.keep_at_most:
            raise UsageError("expected to keep at least no longer than at most")

    def is_floor_of(self, version: Version, now: int) -> bool:
        """Return whether a version is younger than the policy keeps at least."""
        tagged = self.tags.items() <= version.tags.items()
        return self.keep_at_least is not None and tagged and _ended(version) >= now - self.keep_at_least

    def is_over(self, version: Version, now: int) -> bool:
        """Return whether a version is older than the policy keeps at most."""
        tagged = self.tags.items() <= version.tags.items()
        return self.keep_at_most is not None and tagged and _ended(version) < now - self.keep_at_most


def expired(versions: Iterable[Version], policy: Policy, now: int, chain: Chain | None = None) -> list[Version]:
    """Return the versions that no rule keeps, or that are over an age, in their order.

    ``versions``: session by session, the oldest of each first, as the directory lists them.
    ``now``: seconds since 1970. ``chain``: gives the ids of the segments of a version, as `RecordLookup.chain` does.
    """
    there = (v for v in versions if not v.forgotten)
    gone: list[Version] = []
    for _, rows in itertools.groupby(there, key=lambda v: (v.tenant, v.name)):
        known, ages = list(rows), dict[frozenset[tuple[str, bytes]], int]()
        for v in reversed(known):  # a put that repair brought back may be there twice, and counts once
            ages.setdefault(_content(v), len(ages))
        over = [v for v in known if policy.is_over(v, now)]
        going = [v for v in known if v not in over and not _kept(v, ages[_content(v)], policy, now)]
        if going and not policy.drop_last:
            staying = [v for v in known if v not in going and v not in over]
            going = _without_fuller(going, staying, chain)
        gone += [v for v in known if v in (*over, *going) and not policy.is_floor_of(v, now)]
    return gone


def _without_fuller(going: list[Version], staying: list[Version], chain: Chain | None) -> list[Version]:
    """Return versions that may go, without those that hold what no version that stays does."""
    fullest = max(map(_size, staying), default=0)
    above: dict[str, set[bytes]] = {}  # of logs, by part: the segments of what stays
    left: list[Version] = []
    for v in reversed(going):  # a version of a log that stays keeps its beginnings from staying
        logs = [part for part in v.each if part.tokenizer == LOG_TOKENIZER] if chain else []
        if chain and logs and not above:
            for part in (part for whole in staying for part in whole.each if part.tokenizer == LOG_TOKENIZER):
                above.setdefault(part.part, set()).update(chain(part))
        if _size(v) > fullest or any(part.leaf not in above.get(part.part, ()) for part in logs):
            fullest = max(fullest, _size(v))
            for part in logs:
                above.setdefault(part.part, set()).update(chain(part) if chain else ())
        else:
            left.append(v)
    return left[::-1]


def _size(version: Version) -> int:
    """Return the bytes of what is known of a version's content, 0 where that is not known."""
    return sum(part.content.size for part in version.each)


def _content(version: Version) -> frozenset[tuple[str, bytes]]:
    """Return the parts of a version, each with what tells its leaf. Where two were taken for one, more is kept."""
    return frozenset((part.part, part.leaf_prefix) for part in version.each)


def _ended(version: Version) -> int:
    """Return when the last thing in a version was said, or its time, in seconds since 1970.

    What was said is no later than its put: a log may claim any time, and would never be over an age.
    """
    latest = ((part, max(part.time, part.moment >> TICK_BITS)) for part in version.each)
    return max(min(part.content.said(part.time)[1], put) for part, put in latest)


def _kept(version: Version, age: int, policy: Policy, now: int) -> bool:
    """Return whether a rule keeps a version that ``age`` newer contents of its session follow."""
    return (
        (policy.keep_last is None and policy.keep_within is None)
        or (age == 0 and not policy.drop_last)
        or (policy.keep_last is not None and age < policy.keep_last)
        or (policy.keep_within is not None and _ended(version) >= now - policy.keep_within)
        or not policy.tags.items() <= version.tags.items()
    )


def seconds(duration: str) -> int:
    """Return the seconds of a duration such as ``90s``, ``15min``, ``12h``, ``30d``, ``2w`` or ``1d12h``.

    ``1y`` is 365 days. Raises UsageError for anything else.

    >>> seconds("1d12h")
    129600
    """
    parts = _PART.findall(duration)
    total = sum(int(count) * UNITS[unit] for count, unit in parts)
    if not parts or "".join(map("".join, parts)) != duration or total > MAX_SECONDS:
        raise UsageError(f"expected a duration such as 30d, 12h, 15min or 1d12h, found {duration!r}")
    return total
