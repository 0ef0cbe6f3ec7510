"""Rekey: change what opens an archive, or add to it. Nothing is coded again. Spec: FORMAT.md, "Change of the key".

    add       secret, new secret --> the same archive key
    change    new secret --> another archive key --> another wrap key --> the key file of each domain, put again

A crash after each step leaves what follows, and the same call again finishes it:

    1  next generation of the archive's own key file,         the old secret opens until here, the new one from here on
       opened by the new secret, put, and read back
    2  key files of domains put again, one by one             the older wrap keys are still among the root keys
    3  older generations of the archive's own destroyed
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from pltz.archive.encryption.key_files import ATTEMPTS, KeyFolder
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.encryption.keys import KeySource
from pltz.archive.encryption.root_keys import MOST_WRAPS, RootKeys, wrap_id
from pltz.archive.errors import ArchiveError, Fenced
from pltz.archive.format.object_names import KeyFileName
from pltz.plt_codec.errors import CorruptError, FormatError, UsageError

CHANGED = "somebody else changed the key of this archive: open it again"


class Rekeyed(NamedTuple):
    """Keys that were changed.

    Attributes:
        secrets: number of keys that open the archive now.
        files: number of key files of tenants and bases that were put again, or of a tenant destroyed.
        moved: number of records of a tenant that were put again.
    """

    secrets: int
    files: int
    moved: int = 0


def rekey(keys: Keyring, secret: KeySource, *, add: bool = False, drop: bool = False) -> Rekeyed:
    """Let another secret open an archive: beside those that do, or alone. ``keys`` go on by it.

    Args:
        add: it opens the archive beside the others.
        drop: all others end. Without it a change is refused where there are several.

    Raises:
        UsageError: several secrets open it, or 16 do and one is added.
        KeyMismatch, CorruptError: the new secret does not open what it sealed.
        ArchiveError: what was put did not come back the same: the old secret still opens all. Or keys of a tenant are
            missing or damaged, and were so for many changes.
        Fenced: somebody else changed the key since these keys were read.
        StoreError: the store failed.
    """
    store, archive, root, folder = keys.store, keys.archive, keys.root, keys.folder
    if add and drop:
        raise UsageError("expected to add a key or to drop the others, got both")
    if len(root.secrets) > 1 and not (add or drop):
        raise UsageError(
            f"{len(root.secrets)} keys open this archive, and a change ends all but the new one: say --drop, "
            "and add the others again"
        )
    if not add and len(root.wraps) == MOST_WRAPS and (faults := keys.key_check.faults()):
        raise ArchiveError(f"{faults[min(faults)]}; a change would drop the key that may have sealed them")
    changed = (root.adding if add else root.changing)(store.random, archive, secret)
    file = changed.sealed(archive)
    if RootKeys.open(archive, file, secret) != changed:
        raise CorruptError("the new key opens other keys than were sealed: nothing was changed")
    if not folder.put(file):
        raise Fenced(CHANGED)
    if folder.generations()[archive][-1] > file.generation:  # others changed it twice, and destroyed what came between
        folder.destroy(archive, file.generation)
        raise Fenced(CHANGED)
    try:
        same = all(folder.read_copy(KeyFileName(archive, file.generation, copy)) == file for copy in (0, 1))
    except (FormatError, FileNotFoundError):
        same = False
    if not same:
        if not folder.sound(archive, root.generation):  # an erase beside took this change for the newest
            raise Fenced(CHANGED)
        folder.destroy(archive, file.generation)
        raise ArchiveError("the new key file does not come back as it was put: the old key still opens all")
    keys.take_root(changed)
    files = 0 if add else _put_again(keys, folder)
    for generation in folder.generations()[archive]:
        if generation < changed.generation:
            folder.destroy(archive, generation)
    return Rekeyed(len(changed.secrets), files)


def _put_again(keys: Keyring, folder: KeyFolder) -> int:
    """Put the keys of each domain again where an older wrap key seals them, and return their number.

    Damaged ones stay: the older wrap keys do too.
    """
    newest, done = wrap_id(keys.root.wraps[0]), 0
    for domain in folder.generations().keys() - {keys.archive}:
        for _ in range(ATTEMPTS):  # others may put the next generation first
            keys.refresh()
            with suppress(FormatError):
                file, known = folder.newest(domain), keys.of(domain)
                if file and known and file.wrap != newest and keys.publish(known.following()):
                    keys.shred(known.following())
                    done += 1
                    break
    return done
