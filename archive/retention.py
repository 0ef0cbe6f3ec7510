"""Retention: which versions of which sessions a policy keeps. What it does not keep, `pltz archive forget` forgets.

    Policy(keep_last=3, keep_within=30 * 86400).forgets(archive.ls(history=True), now)

A version is kept if any rule keeps it, so rules only ever add; and the newest version of a name is kept unless ``whole`` says that
whole sessions may go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from pltz.archive.view import Version
from pltz.plt_codec.errors import UsageError


@dataclass(frozen=True)
class Policy:
    """``keep_last``: so many newest versions of each name; ``keep_within``: versions not older than so many seconds; ``whole``: a
    session none of whose versions a rule keeps is forgotten as a whole, instead of keeping its newest version.

    Raises UsageError where no rule is given, or one that keeps less than nothing.
    """

    keep_last: int | None = None
    keep_within: int | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        if self.keep_last is None and self.keep_within is None:
            raise UsageError("expected a rule: keep the last N versions, or all within a time")
        if min(self.keep_last or 0, self.keep_within or 0) < 0:
            raise UsageError("a policy cannot keep less than nothing")

    def forgets(self, versions: Iterable[Version], now: int) -> list[Version]:
        """Those that no rule keeps, of versions in the order of tenants, names and ages, as `Archive.ls` gives them with history."""
        gone: list[Version] = []
        for _, group in groupby((v for v in versions if not v.forgotten), lambda v: (v.tenant, v.name)):
            known = list(group)
            kept = {v.id for v in known[len(known) - min(self.keep_last or 0, len(known)) :]}
            if self.keep_within is not None:
                kept |= {v.id for v in known if v.time >= now - self.keep_within}
            if not kept and not self.whole:
                kept.add(known[-1].id)
            gone += [v for v in known if v.id not in kept]
        return gone
