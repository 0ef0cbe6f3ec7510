"""Tokenizers: the tokenizer.json files that a journal's entries name by their fingerprints.

Spec: FORMAT.md, "Files".

They are kept in the journal's directory, so a worker needs nothing else to drain it, whichever models filled
it. A file is first written under a temporary name, under a lock that ends with its process. `JournalReader.tidy`
removes the remains of a killed process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pltz.archive import Disk, StoreError, reason
from pltz.plt_codec import ModelError
from pltz.serving.eviction.journal.lock import Locks, draw

MAX_SIZE = 1 << 28  # bytes


class Tokenizers:
    """The tokenizers of a journal's directory (see the top of this file)."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def keep(self, tokenizer: bytes, locks: Locks) -> bytes:
        """Keep a tokenizer.json durably and return its fingerprint, 16 bytes.

        ``locks``: of the directory. Raises ModelError where it is no tokenizer, and StoreError.
        """
        from pltz.models import TargetTokenizer

        name = TargetTokenizer(tokenizer).fingerprint
        try:
            self._keep(name, tokenizer, locks)
        except OSError as exc:
            raise StoreError(
                f"the tokenizer cannot be kept in the journal: {reason(exc)}. It takes {len(tokenizer)} bytes: "
                "free them on "
                f"the journal's disk, or let a worker drain it (pltz hook drain)"
            ) from exc
        return name

    def _keep(self, name: bytes, tokenizer: bytes, locks: Locks) -> None:
        file = f"{name.hex()}.tokenizer"
        if self._read(file) != tokenizer and self.get(name) is None:
            with self._temporary(tokenizer, locks) as temporary:
                try:
                    self.disk.link(temporary, file)
                except FileExistsError:  # written by another process in between, or damaged
                    if self.get(name) is None:
                        self.disk.unlink(file)
                        self.disk.link(temporary, file)
        self.disk.sync_directory("")

    @contextmanager
    def _temporary(self, data: bytes, locks: Locks) -> Iterator[str]:
        """Yield the name of a synced file with these bytes, and remove it afterwards."""
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
        """Return the tokenizer.json of a fingerprint, None where none is sound. Raises OSError."""
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
    """Return the fingerprint of a tokenizer.json. Raises ModelError."""
    from pltz.models import fingerprint

    try:
        spec = json.loads(tokenizer)
        return fingerprint(spec)
    except (ValueError, AttributeError, RecursionError) as exc:
        raise ModelError("expected the JSON of a tokenizer") from exc
