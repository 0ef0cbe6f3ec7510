"""SessionDirectory: the sessions that an archive has, by tenant and name. Nothing is decoded.

    directory = SessionDirectory(catalog)
    directory.version("chat-7", "acme")     # the last one, or why it cannot be told
    list(directory.ls("acme"))              # the last version of each session
    directory.want_whole("listed them")     # ArchiveError where damage may hide sessions

Every call sees what any process had acknowledged, by the catalogue's rule of freshness. A history is the versions of a
session as far as they can be read, and what may hide others:

    found = history_of(catalog, "acme", "chat-7")
    found.versions              oldest first
    found.want_newest()         LostError or MissingPack where something names a hidden version
    found.last                  the moment that the next version is put after

Whoever reads the newest version, names one by its number, puts the next one or forgets versions looks here first. In an
archive without known damage the look costs a few comparisons.

**Losses.** A version that was put after a loss was recorded is newer than all that was lost. So the newest version is
known then, and older ones may be lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.lookup import Version, VersionName, as_sessions
from pltz.archive.catalog.losses import PackState
from pltz.archive.encryption.keys import LockedArchive
from pltz.archive.errors import ArchiveError, LostError, MissingPack, NotFound
from pltz.archive.format.ids import SALTED, TENANT
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


def history_of(catalog: Catalog, tenant: str, name: str, domain: bytes | None = None) -> History:
    """Return the history of a session.

    ``domain``: id of the tenant's domain, where the caller has it.

    Raises CorruptError where there are versions and none of them is sound, MissingKeys where there are none and the
    keys of the tenant are missing, ArchiveError, StoreError, KeyMismatch.
    """
    domain = domain or catalog.keys.domain(TENANT, tenant)
    return catalog.listing.stable(partial(_history, catalog, tenant, name, domain))


def _history(catalog: Catalog, tenant: str, name: str, domain: bytes) -> History:
    versions = catalog.lookup.read_versions(domain, name)  # meets the damage that hides others
    if not versions:
        catalog.keys.want(domain, f"tenant {tenant!r}")
    if catalog.listing.is_whole:
        return History(tenant, name, versions)
    key, damage = catalog.keys.session_key(domain, name), catalog.damage
    newer, blind = damage.hides(SESSIONS, key), damage.uncatalogued(domain)
    newest = versions[-1].moment >> TICK_BITS if versions else -1
    older, older_blind, lost = None, set[bytes](), -1
    for loss in damage.losses():
        named = key_of(key) in loss.sessions
        if named or loss.pack in blind:
            lost = max(lost, loss.time)
        if named and loss.time >= newest:
            newer = newer or PackState.LOST
        elif named:
            older = PackState.LOST
        elif loss.pack in blind and loss.time < newest:
            older_blind.add(loss.pack)
    newer = newer or _hidden_mark(catalog, versions)
    sets = frozenset(blind - older_blind), older, frozenset(older_blind)
    return History(tenant, name, versions, newer, *sets, lost)


def _hidden_mark(catalog: Catalog, versions: Sequence[Version]) -> PackState | None:
    """Return the state of a pack that hides a mark, so that another version may be the newest; None without.

    One that is not forgotten may be so after all. One behind all of these may have been undeleted.
    """
    left = [number for number, v in enumerate(versions) if not v.forgotten]
    asked = [*(versions[n] for n in left), *versions[left[-1] + 1 if left else 0 :]]
    states = (catalog.damage.hides(MARKS, v.id) for v in asked)
    return next((state for state in states if state is not None), None)


class SessionDirectory:
    """Finds and lists versions through the catalogue of an archive."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def version(self, name: str, tenant: str = "default", wanted: VersionName | None = None, part: str = "") -> Version:
        """Return a part of the last version of a session that is not forgotten, or of the one of a number or an id.

        Raises NotFound where the version has no such part, LostError where what was put last of it may be lost, and the
        errors of `whole`.
        """
        whole, known = self._found(name, tenant, wanted)
        parts = {v.part: v for v in whole.parts or [whole]}
        known.want_part(whole, parts.get(part))
        if part not in parts:
            what = f"part {part!r}" if part else "main part"
            raise NotFound(f"session {name!r} of tenant {tenant!r} has no {what}, but {', '.join(map(repr, parts))}")
        return parts[part]

    def parts(self, name: str, tenant: str = "default", wanted: VersionName | None = None) -> tuple[Version, ...]:
        """Return the parts of a version, as `whole` finds it.

        Raises its errors, and LostError where what was put last of one of them may be lost.
        """
        whole, known = self._found(name, tenant, wanted)
        for part in whole.each:
            known.want_part(whole, part)
        return tuple(whole.each)

    def whole(self, name: str, tenant: str = "default", wanted: VersionName | None = None) -> Version:
        """Return the last version of a session that is not forgotten, or the one of a number or an id, as a whole.

        A number counts all versions, so it is refused where damage may hide some.

        Raises:
            NotFound: there is no such session or version.
            LostError: damage took it, or what may be the last version.
            MissingPack: it is in a missing pack that repair may restore.
            ArchiveError: it may be in a damaged pack.
        """
        return self._found(name, tenant, wanted)[0]

    def _found(self, name: str, tenant: str, wanted: VersionName | None) -> tuple[Version, History]:
        """Return what `whole` returns, and what was seen of the session."""
        known = self.sight(name, tenant)
        there = list(as_sessions(known.versions))
        found = [v for v in there if (not v.forgotten if wanted is None else v.is_named(wanted))]
        if wanted is None:
            known.want_newest()
        if not (found and isinstance(wanted, bytes | None)):  # what is hidden may be it, or changes the numbers
            known.want_counted()
        if not found:
            if not known.versions and (lost := self._acknowledged_loss(name, tenant)):
                raise NotFound(f"session {name!r} of tenant {tenant!r} {lost}")
            raise NotFound(_not_found(name, tenant, wanted, there))
        return found[-1], known

    def _acknowledged_loss(self, name: str, tenant: str) -> str | None:
        """Return the message about a session that an acknowledged loss names; None where none does."""
        keys = self._catalog.keys
        key = key_of(keys.session_key(keys.domain(TENANT, tenant), name))
        for loss in self._catalog.listing.losses():
            if loss.acknowledged is not None and key in loss.sessions:
                lost, told = moment(loss.time), moment(loss.acknowledged)
                return f"was lost: repair gave up pack {loss.pack.hex()} at {lost}; acknowledged at {told}"
        return None

    def sight(self, name: str, tenant: str = "default") -> History:
        """Return the versions of a session that can be read, and what may hide others.

        Raises CorruptError where there are some and none of them is sound, ArchiveError, StoreError.
        """
        looked = self._catalog.look()
        found = history_of(self._catalog, tenant, name)
        if not (found.versions or looked):  # no session is absent by an old sight
            self._catalog.look_now()
            found = history_of(self._catalog, tenant, name)
        if not (found.whole or self._catalog.listing.listed):  # none is lost before a look at what is there
            self._catalog.refresh()
            found = history_of(self._catalog, tenant, name)
        return found

    def whole_histories(self, tenant: str | None = None) -> list[Version]:
        """Return all versions, as wholes, of the sessions of which damage hides none, by tenant and name.

        Raises ArchiveError.
        """
        self._catalog.refresh()
        known = (v for v in self._catalog.lookup.all_versions() if tenant is None or v.tenant == tenant)
        groups = [list(rows) for _, rows in itertools.groupby(known, key=lambda v: (v.tenant, v.name))]
        return [v for rows in groups if self.is_whole(rows) for v in as_sessions(rows)]

    def is_whole(self, versions: Sequence[Version]) -> bool:
        """Return whether these are all versions of a session, of which there is one at least. Raises StoreError."""
        if self._catalog.listing.is_whole:
            return not any(v.hides_older for v in versions)
        return history_of(self._catalog, versions[0].tenant, versions[0].name).whole

    def ls(self, tenant: str | None = None, *, forgotten: bool = False, history: bool = False) -> Iterator[Version]:
        """Yield the last version of each session, or all versions with ``history``, by tenant and name, as wholes.

        Forgotten versions come only on request. Raises ArchiveError, StoreError.
        """
        self._catalog.look()
        keys = self._catalog.keys
        domain = None if tenant is None or isinstance(keys, LockedArchive) else keys.domain(TENANT, tenant)
        found = self._catalog.lookup.all_versions(domain, listed=True)
        known = (v for v in found if tenant is None or v.tenant == tenant)
        chosen = [v for v in as_sessions(known) if forgotten or not v.forgotten]
        for number, v in enumerate(chosen):
            following = chosen[number + 1 : number + 2]
            if history or not following or (following[0].tenant, following[0].name) != (v.tenant, v.name):
                yield v

    def salted(self, tenant: str) -> list[str]:
        """Return the tenants under salts of a tenant that have sessions, forgotten ones too: each is one of its own."""
        found = {version.tenant for version in self.ls(history=True, forgotten=True)}
        return sorted(one for one in found if one.startswith(tenant + SALTED))

    def want_whole(self, what: str, tenant: str | None = None) -> None:
        """Raise ArchiveError where a listing may lack sessions because packs or keys are damaged or gone.

        Args:
            what: the completed work, for the message.
            tenant: the listing was of this tenant alone, so the keys of others do not count.
        """
        keys, damage = self._catalog.keys, self._catalog.damage
        all_tenants = tenant is None or isinstance(keys, LockedArchive)
        if lacking := self._catalog.keyless(None if all_tenants else keys.domain(TENANT, tenant or "")):
            raise ArchiveError(
                f"{what}, but sessions are missing: {lacking[min(lacking)]}"
                + (f"; and those of {counted(len(lacking) - 1, 'other domain')}" if len(lacking) > 1 else "")
            )
        losses = {loss.pack for loss in damage.losses()}
        if hiding := damage.hiding() - losses:
            raise ArchiveError(
                f"{what}, but sessions may be missing: {counted(len(hiding), 'pack')} damaged or gone, "
                "see pltz archive repair"
            )
        if losses:
            raise ArchiveError(
                f"{what}, but sessions were lost with {counted(len(losses), 'pack')} that repair gave up: "
                "see pltz archive verify; pltz archive repair --acknowledge ends this message"
            )


def _not_found(name: str, tenant: str, wanted: VersionName | None, known: list[Version]) -> str:
    if wanted is not None and known:
        return (
            f"session {name!r} of tenant {tenant!r} has versions "
            f"{', '.join(str(v.version) for v in known)}, not "
            f"{wanted.hex() if isinstance(wanted, bytes) else wanted}"
        )
    if known:
        return f"session {name!r} of tenant {tenant!r} is forgotten: undelete it, or name a version"
    return f"no session {name!r} of tenant {tenant!r} in this archive: see pltz archive ls"
