"""The certificate of an erasure: one document that a person can file, of what `pltz archive erase` did and proved."""

from collections.abc import Sequence

from pltz.archive.archive import Archive
from pltz.archive.humanize import counted, moment
from pltz.archive.maintenance.erase import Erasure
from pltz.plt_codec.identity import digest

PERSON = b"pltz certif."
ELSEWHERE = (
    "copies of the folder keys/ in backups, snapshots and versioned buckets; they open only with the archive's key",
    "blocks that a copy-on-write file system or a flash disk keeps of deleted files",
    "sources from which it was put, and what was restored or copied from this archive before",
    "KV caches, journals and indexes of words on other machines, until these erase or renew them",
)


def certificate(done: Erasure, cold: Archive, under: Sequence[str] = ()) -> str:
    """Return the document of an erasure, the archive's last change. ``under``: tenants under salts that stay."""
    catalog = cold.parts.catalog
    audit, author = catalog.listing.present.audit, catalog.author
    if done.base is not None:
        what = f"base domain {done.base!r}"
    else:
        what = f"session {done.name!r} of tenant {done.tenant!r}" if done.name else f"all of tenant {done.tenant!r}"
    stays = [f"segments that other sessions share: {done.shared:,}"] if done.shared else []
    stays += [f"base {use.name!r}, with prompts of several tenants" for use in done.bases if not use.erased]
    stays += [f"tenant {other!r}, under a salt of it" for other in under]
    unread = f"; {counted(done.unread, 'damaged pack')} not read to the end" if done.unread else ""
    rows = {
        "Archive": catalog.listing.archive.hex(),
        "Erased": what,
        "Time": moment(cold.parts.store.now()),
        "By": author.actor,
        "Reason": author.reason or "none was given",
        "Gone": f"{counted(done.versions, 'version')}, {counted(done.segments, 'segment')}",
        "How": f"{counted(done.files, 'key file')} overwritten and deleted; without them no record opens (AES-256-SIV)",
        "Proof": f"{counted(done.records, 'record')} read from the raw packs after it, none has a key any more{unread}",
        "Stays": "; ".join(stays) or "nothing of it",
        "Not reached": "\n             ".join(ELSEWHERE),
        "Audit": f"record {audit.end}, {audit.last.hex()}",
    }
    text = "CERTIFICATE OF ERASURE\n\n" + "".join(f"{key:<12} {value}\n" for key, value in rows.items())
    return f"{text}\nDigest of all above: {digest(PERSON, text.encode('utf-8', 'backslashreplace')).hex()}\n"
