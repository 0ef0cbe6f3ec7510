"""History: the versions of a session as far as they can be read, and what may hide others.

    found = catalog.histories.of(domain, "chat-7")
    found.versions              oldest first
    found.want_newest()         LostError or MissingPack where something names a hidden version
    found.last                  the moment that the next version is put after

Whoever reads the newest version, names one by its number, puts the next one or forgets versions looks here first. In an
archive without known damage the look costs a few comparisons.

**Losses.** A version that was put after a loss was recorded is newer than all that was lost. So the newest version is
known then, and older ones may be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pltz.archive.catalog.damage import DamageReport
from pltz.archive.catalog.listing import Listing
from pltz.archive.catalog.lookup import RecordLookup, Version
from pltz.archive.catalog.losses import PackState
from pltz.archive.encryption.keys import Encryption
from pltz.archive.errors import ArchiveError, LostError, MissingPack
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import MARKS, SESSIONS, key_of
from pltz.archive.format.record import TICK_BITS
from pltz.archive.humanize import counted, moment

SHOWN = 4  # bytes of an id that messages show, which are enough to name a version of a session
MOST_SHOWN = 8  # versions that a message names


@dataclass(frozen=True)
class History:
    """The versions of a session that can be read, oldest first, and what may hide others.

    Attributes:
        newer: state of a pack that keeps a record of the session from being read; None without one. Its versions may be
            newer than all of ``versions``, or it has the mark of one that is forgotten.
        blind: packs of which nothing tells whether they have versions of the session.
        older: the state of a loss that names the session and was recorded before the newest of ``versions`` was put.
        older_blind: packs as ``blind`` has them, lost before that.
        lost: when the last loss was recorded that may have versions of the session, in seconds since 1970; -1 without.
    """

    tenant: str
    name: str
    versions: list[Version]
    newer: PackState | None = None
    blind: frozenset[bytes] = frozenset()
    older: PackState | None = None
    older_blind: frozenset[bytes] = frozenset()
    lost: int = -1

    @property
    def last(self) -> int:
        """Return the moment, in ticks, that the next version is put after: it is newer than all seen, and all lost."""
        return max([(self.lost + 1 << TICK_BITS) - 1, *(v.moment for v in self.versions)])

    @property
    def has_newest(self) -> bool:
        """Return whether no version newer than those found can be hidden."""
        return self.newer is None and not self.blind

    @property
    def whole(self) -> bool:
        """Return whether no version can be hidden."""
        return self.has_newest and not self._cut_short

    @property
    def _cut_short(self) -> bool:
        return any(v.hides_older for v in self.versions)

    def want_newest(self) -> None:
        """Check that no version newer than those found can be hidden, and that none is hidden where none was found.

        Raises MissingPack where it is in a missing pack, LostError where damage took it, ArchiveError where it is not
        known what was in a pack.
        """
        if self.newer is not None:
            raise self._hidden(MissingPack if self.newer is PackState.MISSING else LostError)
        if self.blind or not self.versions:
            self._want_sight(self.blind)

    def want_part(self, whole: Version, part: Version | None) -> None:
        """Check that no newer record of a part can be lost than what a version has of it; None: it has none.

        A version that was put after a loss tells of its own parts alone. Raises LostError.
        """
        if part is not None and part.moment == whole.moment:
            return
        if self.lost >= (part.moment >> TICK_BITS if part else 0):
            raise self._hidden(LostError)

    def want_named(self) -> None:
        """Check as `want_newest` does, and that nothing names hidden older versions. Raises its errors."""
        self.want_newest()
        if self._cut_short:
            raise self._hidden(LostError)

    def want_whole(self) -> None:
        """Check that no version can be hidden. Raises the errors of `want_newest`."""
        self.want_named()
        self._want_sight(self.blind)

    def want_counted(self) -> None:
        """Check that no version can be hidden or lost, so that numbers count all. Raises as `want_newest`."""
        self.want_whole()
        if self.older:
            raise self._hidden(LostError)
        self._want_sight(self.older_blind)

    def _want_sight(self, blind: frozenset[bytes]) -> None:
        if blind:
            found, may = ("", "have other versions") if self.versions else ("no ", "have had it")
            raise ArchiveError(
                f"found {found}{self._what}, and {counted(len(blind), 'pack')} damaged or gone may {may}: "
                f"see pltz archive repair, then ask again{self._left}"
            )

    def _hidden(self, error: type[LostError]) -> LostError:
        return error(f"a record of {self._what} is damaged or gone: see pltz archive repair{self._left}")

    @property
    def _what(self) -> str:
        return f"session {self.name!r} of tenant {self.tenant!r}"

    @cached_property
    def _left(self) -> str:
        left = [f"{v.id[:SHOWN].hex()} of {moment(v.time)}" for v in self.versions if not v.forgotten]
        some = ", ".join(left[-MOST_SHOWN:])
        return f"; name a version of those left by its id: {some}" if left else ""


class Histories:
    """Finds histories through the look-ups and the damage report of a catalogue."""

    def __init__(
        self, listing: Listing, lookup: RecordLookup, damage: DamageReport, keys: Encryption
    ) -> None:
        self._listing, self._lookup, self._damage, self._keys = listing, lookup, damage, keys

    def of(self, tenant: str, name: str, domain: bytes | None = None) -> History:
        """Return the history of a session.

        ``domain``: id of the tenant's domain, where the caller has it.

        Raises CorruptError where there are versions and none of them is sound, MissingKeys where there are none and the
        keys of the tenant are missing, ArchiveError, StoreError, KeyMismatch.
        """
        domain = domain or self._keys.domain(TENANT, tenant)
        return self._listing.stable(lambda: self._of(tenant, name, domain))

    def _of(self, tenant: str, name: str, domain: bytes) -> History:
        versions = self._lookup.versions(domain, name)  # meets the damage that hides others
        if not versions:
            self._keys.want(domain, f"tenant {tenant!r}")
        if self._clear:
            return History(tenant, name, versions)
        key = self._keys.session_key(domain, name)
        newer, blind = self._damage.hides(SESSIONS, key), self._damage.uncatalogued(domain)
        newest = versions[-1].moment >> TICK_BITS if versions else -1
        older, older_blind, lost = None, set[bytes](), -1
        for loss in self._damage.losses():
            named = key_of(key) in loss.sessions
            if named or loss.pack in blind:
                lost = max(lost, loss.time)
            if named and loss.time >= newest:
                newer = newer or PackState.LOST
            elif named:
                older = PackState.LOST
            elif loss.pack in blind and loss.time < newest:
                older_blind.add(loss.pack)
        newer = newer or self._hidden_mark(versions)
        sets = frozenset(blind - older_blind), older, frozenset(older_blind)
        return History(tenant, name, versions, newer, *sets, lost)

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
        return not (self._listing.missing() or self._damage.damaged() or self._damage.losses())

    @property
    def may_hide(self) -> bool:
        """Return whether a session may have versions although no look-up finds its key. Raises StoreError."""
        return not self._clear

    def are_whole(self, versions: Sequence[Version]) -> bool:
        """Return whether these are all versions of a session, of which there is one at least. Raises StoreError."""
        if self._clear:
            return not any(v.hides_older for v in versions)
        return self.of(versions[0].tenant, versions[0].name).whole
