"""History: the versions of a session as far as they can be read, and what may hide others.

    found = catalog.histories.of(domain, "chat-7")
    found.versions              oldest first
    found.want_newest()         LostError or MissingPack where something names a hidden version
    found.next_number           for the next version: above all of them, hidden ones included

Whoever reads the newest version, assigns a number or forgets versions looks here first. In an archive without known
damage the look costs a few comparisons.

**Numbers.** The next version is one above the highest number there is. Where versions may be hidden, by a pack that is
damaged or missing, its number is above the time in seconds since 1970: no session has so many versions. Where a pack
was lost it is above the time at which that was recorded, so such a version is known to be newer than what was lost. A
pack that comes back never puts an older version in front of a newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pltz.archive.catalog.damage import DamageReport
from pltz.archive.catalog.ledger import PackLedger, PackState
from pltz.archive.catalog.listing import Listing
from pltz.archive.catalog.lookup import RecordLookup, Version
from pltz.archive.encryption.keys import Encryption
from pltz.archive.errors import ArchiveError, LostError, MissingPack, RolledBack
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import MARKS, SESSIONS, key_of
from pltz.archive.humanize import counted

MAX_FLOOR = (1 << 32) - (1 << 20)  # numbers are below 2^32; room for a million versions above, whatever the clock says


@dataclass(frozen=True)
class History:
    """The versions of a session that can be read, oldest first, and what may hide others.

    Attributes:
        newer: state of a pack that keeps a record of the session from being read; None without one. Its versions may be
            newer than all of ``versions``, or it has the mark of one that is forgotten.
        blind: packs of which nothing tells whether they have versions of the session.
        floor: number that is above all hidden versions; 0 where none can be hidden.
        behind: why the archive may be older than it was, see `Listing.behind`; empty where nothing tells so.
    """

    tenant: str
    name: str
    versions: list[Version]
    newer: PackState | None = None
    blind: frozenset[bytes] = frozenset()
    floor: int = 0
    behind: str = ""

    @property
    def next_number(self) -> int:
        """Return the number of the next version."""
        return max(self.floor, 1 + max((v.version for v in self.versions), default=0))

    @property
    def has_newest(self) -> bool:
        """Return whether no version newer than those found can be hidden."""
        return self.newer is None and not self.blind

    @property
    def whole(self) -> bool:
        """Return whether no version can be hidden."""
        return self.has_newest and not self._older

    @property
    def _older(self) -> bool:
        return any(v.hides_older for v in self.versions)

    def want_newest(self) -> None:
        """Check that no version newer than those found can be hidden, and that none is hidden where none was found.

        Raises MissingPack where it is in a missing pack, LostError where damage took it, ArchiveError where it is not
        known what was in a pack, RolledBack where the archive may be older than it was.
        """
        if self.newer is not None:
            raise self._hidden(MissingPack if self.newer is PackState.MISSING else LostError)
        if self.blind or not self.versions:
            self._want_sight()

    def want_named(self) -> None:
        """Check as `want_newest` does, and that nothing names hidden older versions. Raises its errors."""
        self.want_newest()
        if self._older:
            raise self._hidden(LostError)

    def want_whole(self) -> None:
        """Check that no version can be hidden. Raises the errors of `want_newest`."""
        self.want_named()
        self._want_sight()

    def _want_sight(self) -> None:
        if self.blind:
            found, may = ("", "have other versions") if self.versions else ("no ", "have had it")
            raise ArchiveError(
                f"found {found}{self._what}, and {counted(len(self.blind), 'pack')} damaged or gone may {may}: "
                f"see pltz archive repair, then ask again{self._left}"
            )
        if self.behind:
            raise RolledBack(f"found no such version of {self._what}, and {self.behind}{self._left}")

    def _hidden(self, error: type[LostError]) -> LostError:
        return error(f"a record of {self._what} is damaged or gone: see pltz archive repair{self._left}")

    @property
    def _what(self) -> str:
        return f"session {self.name!r} of tenant {self.tenant!r}"

    @cached_property
    def _left(self) -> str:
        numbers = ", ".join(str(v.version) for v in self.versions if not v.forgotten)
        return f"; name a version of those left: {numbers}" if numbers else ""


class Histories:
    """Finds histories through the look-ups and the damage report of a catalogue."""

    def __init__(
        self, listing: Listing, lookup: RecordLookup, damage: DamageReport, ledger: PackLedger, keys: Encryption
    ) -> None:
        self._listing, self._lookup, self._damage, self._ledger, self._keys = listing, lookup, damage, ledger, keys

    def of(self, tenant: str, name: str, domain: bytes | None = None, *, older: bool = False) -> History:
        """Return the history of a session.

        ``domain``: id of the tenant's domain, where the caller has it. ``older``: also count what can hide only
        versions older than those found, for who looks for one of these by its number.

        Raises CorruptError where there are versions and none of them is sound, MissingKeys where there are none and the
        keys of the tenant are missing, ArchiveError, StoreError, KeyMismatch.
        """
        domain = domain or self._keys.domain(TENANT, tenant)
        return self._listing.stable(lambda: self._of(tenant, name, domain, older))

    def _of(self, tenant: str, name: str, domain: bytes, older: bool) -> History:
        versions = self._lookup.versions(domain, name)  # meets the damage that hides others
        if not versions:
            self._keys.want(domain, f"tenant {tenant!r}")
        behind = self._listing.behind
        if self._clear:
            return History(tenant, name, versions, behind=behind)
        key = self._keys.session_key(domain, name)
        highest = 0 if older else max((v.version for v in versions), default=0)
        newer = self._damage.hides(SESSIONS, key, highest) or self._hidden_mark(versions)
        blind = self._damage.uncatalogued(domain, highest)
        times = [
            loss.entry.time
            for loss in self._ledger.losses()  # acknowledged ones too: a lost pack may come back
            if loss.pack not in self._listing.packs
            and (not loss.entry.complete or key_of(key) in loss.entry.sessions)
        ]
        times += [self._listing.store.now()] if newer or blind else []
        floor = min(1 + max(times), MAX_FLOOR) if times else 0
        return History(tenant, name, versions, newer, frozenset(blind), floor, behind)

    def _hidden_mark(self, versions: Sequence[Version]) -> PackState | None:
        """Return the state of a pack that hides a mark, so that another version may be the newest; None without.

        One that is not forgotten may be so after all. One behind all of these may have been undeleted.
        """
        left = [number for number, v in enumerate(versions) if not v.forgotten]
        asked = [*(versions[n] for n in left), *versions[left[-1] + 1 if left else 0 :]]
        states = (self._damage.hides(MARKS, v.id) for v in asked)
        return next((state for state in states if state is not None), None)

    @property
    def _clear(self) -> bool:
        """Return whether nothing is known to be damaged, missing or lost."""
        # losses last: looking for missing packs reads the ledger
        return not (self._listing.missing() or self._damage.damaged() or self._ledger.losses())

    @property
    def may_hide(self) -> bool:
        """Return whether a session may have versions although no look-up finds its key. Raises StoreError."""
        return not self._clear

    def are_whole(self, versions: Sequence[Version]) -> bool:
        """Return whether these are all versions of a session, of which there is one at least. Raises StoreError."""
        if self._clear:
            return not any(v.hides_older for v in versions)
        return self.of(versions[0].tenant, versions[0].name).whole
