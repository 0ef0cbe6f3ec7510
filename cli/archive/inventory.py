"""The inventory of what was given: a JSON document for a person who asked for all of a person or a period.

    given            each session and part in a file: its digest, and the hold that keeps it
    not_given        what was asked for too and is in no file, and why: forgotten, an older version, refused
    other_tenants    those under salts of the tenant that was asked for, whose sessions have to be asked for by name
    erased           how many sessions of these tenants were erased; no name of them is left
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pltz.archive.encryption.keyring import Keyring
from pltz.archive.errors import ArchiveError
from pltz.archive.format.ids import TENANT
from pltz.archive.humanize import moment
from pltz.cli.archive.files import Folder
from pltz.cli.archive.shared import is_of, seconds_of
from pltz.plt_codec.errors import FormatError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.catalog.lookup import Version


class Asked(NamedTuple):
    """A request, in the words of the command."""

    names: Sequence[str]
    tenant: str | None
    tags: Mapping[str, str]
    since: str | None
    until: str | None


def inventory(cold: "Archive", folder: Folder, chosen: "Iterable[Version]", asked: Asked) -> dict[str, Any]:
    """Return the document. ``chosen``: the versions that were to be written."""
    catalog, given, refused = cold.parts.catalog, list[dict[str, Any]](), list[dict[str, Any]]()
    for file, path, why in folder.fates:
        row: dict[str, Any] = {"why": why} if why else {}
        if path is not None and not why:
            with path.open("rb") as written:
                sha256 = hashlib.file_digest(written, "sha256").hexdigest()
            row = {"file": str(path.relative_to(folder.path)), "bytes": path.stat().st_size, "sha256": sha256}
        (refused if why else given).extend(_facts(cold, version) | row for version in file.versions)
    met = {(row["id"], row["part"]) for row in (*given, *refused)}
    for version in {part.id: part for whole in _all(cold, chosen, asked) for part in whole.each}.values():
        if (version.id.hex(), version.part) not in met:
            refused.append(_facts(cold, version) | {"why": "forgotten" if version.forgotten else "an older version"})
    tenants = {row["tenant"] for row in (*given, *refused)} | ({asked.tenant} if asked.tenant else set[str]())
    whole = ""
    try:
        cold.directory.want_whole("listed", asked.tenant)
    except ArchiveError as exc:
        whole = str(exc)
    audit = catalog.listing.present.audit
    return {
        "archive": catalog.listing.archive.hex(),
        "time": moment(cold.parts.store.now()),
        **catalog.author._asdict(),
        "asked": asked._asdict(),
        "given": given,
        "not_given": refused,
        "other_tenants": [] if asked.tenant is None else cold.directory.salted(asked.tenant),
        "erased": sum([_erased(cold, tenant) for tenant in tenants]) if catalog.keys.cipher else None,
        "damaged": whole,
        "audit": {"record": audit.end, "digest": audit.last.hex()},
    }


def _all(cold: "Archive", chosen: "Iterable[Version]", asked: Asked) -> "Iterator[Version]":
    """Yield all versions that were asked for, forgotten and older ones too."""
    names, period = {version.name for version in chosen}, (seconds_of(asked.since), seconds_of(asked.until))
    for version in cold.directory.ls(asked.tenant, history=True, forgotten=True):
        named = version.name in names or not asked.names
        if named and asked.tags.items() <= version.tags.items() and is_of(period, version):
            yield version


def _facts(cold: "Archive", version: "Version") -> dict[str, Any]:
    hold = cold.parts.catalog.holds.on_version(version)
    first, last = map(moment, version.content.said(version.time))
    return {
        "tenant": version.tenant,
        "name": version.name,
        "part": version.part,
        "id": version.id.hex(),
        "said": [first, last],
        "tags": dict(version.tags),
        "held": hold.id.hex() if hold else None,
    }


def _erased(cold: "Archive", tenant: str) -> int:
    """Return how many sessions of a tenant were erased by name, as far as its keys tell."""
    keys = cold.parts.catalog.keys
    with suppress(FormatError):
        if isinstance(keys, Keyring) and (known := keys.of(keys.domain(TENANT, tenant))):
            return len(known.buried)
    return 0
