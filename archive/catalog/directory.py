"""SessionDirectory: the sessions that an archive has, by tenant and name. Nothing is decoded.

    directory = SessionDirectory(catalog)
    directory.version("chat-7", "acme")     # the last one, or why it cannot be told
    list(directory.ls("acme"))              # the last version of each session
    directory.want_whole("listed them")     # ArchiveError where damage may hide sessions

Every call sees what any process had acknowledged, by the catalogue's rule of freshness.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.history import History
from pltz.archive.catalog.lookup import Version, VersionName, as_sessions
from pltz.archive.encryption.keys import LockedArchive
from pltz.archive.errors import ArchiveError, NotFound
from pltz.archive.format import index_file
from pltz.archive.format.ids import TENANT
from pltz.archive.humanize import counted, moment


class SessionDirectory:
    """Finds and lists versions through the catalogue of an archive."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def version(
        self, name: str, tenant: str = "default", wanted: VersionName | None = None, part: str = ""
    ) -> Version:
        """Return a part of the last version of a session that is not forgotten, or of the one of a number or an id.

        Raises NotFound where the version has no such part, LostError where what was put last of it may be lost, and the
        errors of `whole`.
        """
        whole, known = self._found(name, tenant, wanted)
        parts = {v.part: v for v in whole.each}
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
        key = index_file.key_of(keys.session_key(keys.domain(TENANT, tenant), name))
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
        found = self._catalog.histories.of(tenant, name)
        if not (found.versions or looked):  # no session is absent by an old sight
            self._catalog.look_now()
            found = self._catalog.histories.of(tenant, name)
        if not (found.whole or self._catalog.listing.listed):  # none is lost before a look at what is there
            self._catalog.refresh()
            found = self._catalog.histories.of(tenant, name)
        return found

    def whole_histories(self, tenant: str | None = None) -> list[Version]:
        """Return all versions, as wholes, of the sessions of which damage hides none, by tenant and name.

        Raises ArchiveError.
        """
        self._catalog.refresh()
        known = (v for v in self._catalog.lookup.all_versions() if tenant is None or v.tenant == tenant)
        groups = [list(rows) for _, rows in itertools.groupby(known, key=lambda v: (v.tenant, v.name))]
        return [v for rows in groups if self._catalog.histories.are_whole(rows) for v in as_sessions(rows)]

    def ls(
        self,
        tenant: str | None = None,
        *,
        forgotten: bool = False,
        history: bool = False,
    ) -> Iterator[Version]:
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
    return f"no session {name!r} of tenant {tenant!r} in this archive"
