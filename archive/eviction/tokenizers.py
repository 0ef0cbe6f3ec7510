"""Tokenizers: the tokenizer.json files that a journal's entries name, in the journal's directory, by their fingerprints. Spec: FORMAT.md, "Files".

So that whoever drains a journal needs nothing but its directory, whichever models filled it. A file is written under another name, next to a lock that
goes with the process: what a kill leaves, `Backlog.tidy` takes away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pltz.archive.errors import StoreError, reason
from pltz.archive.eviction.journal.lock import Locks, draw
from pltz.archive.storage.disk import Disk
from pltz.plt_codec.errors import ModelError

MAX_SIZE = 1 << 28  # bytes


class Tokenizers:
    """See the head of this file."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def keep(self, tokenizer: bytes, locks: Locks) -> bytes:
        """Keep a tokenizer.json, durably; its fingerprint. ``locks``: of the directory. Raises ModelError where it is none, StoreError."""
        from pltz.models.bundle.bridge import Target

        name = Target(tokenizer).fingerprint
        try:
            self._keep(name, tokenizer, locks)
        except OSError as exc:
            raise StoreError(
                f"the tokenizer cannot be kept in the journal: {reason(exc)}. It takes {len(tokenizer)} bytes: free them on "
                f"the journal's disk, or let a worker drain it (pltz hook drain)"
            ) from exc
        return name

    def _keep(self, name: bytes, tokenizer: bytes, locks: Locks) -> None:
        file = f"{name.hex()}.tokenizer"
        if self._read(file) != tokenizer and self.get(name) is None:
            with self._temporary(tokenizer, locks) as temporary:
                try:
                    self.disk.link(temporary, file)
                except FileExistsError:  # by another process, meanwhile, or damaged
                    if self.get(name) is None:
                        self.disk.unlink(file)
                        self.disk.link(temporary, file)
        self.disk.sync_directory("")

    @contextmanager
    def _temporary(self, data: bytes, locks: Locks) -> Iterator[str]:
        """The name of a file with these bytes, synced, for as long as it is needed."""
        owner, lock = draw(self.disk, locks)
        temporary = f"{owner.hex()}.tmp"
        try:
            self.disk.write_new(temporary, data)
            self.disk.sync_file(temporary)
            yield temporary
        finally:
            for file in (temporary, f"{owner.hex()}.lock"):
                with suppress(OSError):
                    self.disk.unlink(file)
            lock.free()

    def get(self, name: bytes) -> bytes | None:
        """The tokenizer.json of that fingerprint, None where there is none that holds. Raises OSError."""
        found = self._read(f"{name.hex()}.tokenizer")
        try:
            return found if found is not None and _fingerprint(found) == name else None
        except ModelError:
            return None

    def _read(self, file: str) -> bytes | None:
        try:
            return self.disk.read(file, 0, MAX_SIZE)
        except FileNotFoundError:
            return None


def _fingerprint(tokenizer: bytes) -> bytes:
    """Raises ModelError."""
    from pltz.models.bundle.bridge import fingerprint

    try:
        spec = json.loads(tokenizer)
        return fingerprint(spec)
    except (ValueError, AttributeError, RecursionError) as exc:
        raise ModelError("expected the JSON of a tokenizer") from exc
