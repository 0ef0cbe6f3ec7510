"""The register of the manifest: its present state as this process knows it, and swaps of the next one.

    register.load()                    the manifest; ManifestLost, RolledBack where it cannot be used
    register.swap(lambda base: ...)    the manifest that was put in place of the present one, however many others swap

Spec: WRITING.md, "The register".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from pltz.archive.errors import ManifestLost, RolledBack, StoreError, UnreadableError
from pltz.archive.format.manifest import Manifest, claimed_generation
from pltz.archive.format.object_names import MANIFEST
from pltz.archive.storage.store import Content, Store
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.identity import SIZE

TURNS = 200  # swaps in which others may be first
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.3  # seconds
DAY = 86_400 << 20  # in units of generations that the clock gives


class _NextManifest(NamedTuple):
    """A manifest that may be put in place of another, as it was asked for, and as it is with its bytes."""

    base: Manifest | None
    asked: Manifest
    next: Manifest
    data: bytes


class ManifestRegister:
    """The manifest of an archive.

    ``manifest``: the one that was loaded or put last, None where that cannot be used: there was none, it is damaged, or
    its generation is below one that was seen. ``older``: the one that is there then, else None.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._content: Content | None = None
        self.manifest: Manifest | None = None
        self.older: Manifest | None = None
        self._highest = 0  # generation
        self._drafted: _NextManifest | None = None
        self._ahead = False  # whether it was loaded for the next call of `load`

    def load(self) -> Manifest:
        """Return the present manifest.

        Raises ManifestLost where it is damaged or gone, RolledBack where a newer one was seen, StoreError,
        VersionError.
        """
        found = self.find()
        if found is None and self.older:
            raise RolledBack(
                f"the manifest is of generation {self.older.generation}, and {self._highest} was seen: the archive or "
                "its manifest was brought back from a backup; run pltz archive repair, and put again what was put "
                "since that backup"
            )
        if found is None:
            raise ManifestLost("the manifest is damaged or gone: run pltz archive repair, which makes it again")
        return found

    def find(self) -> Manifest | None:
        """Return the present manifest, None where there is none that can be used. Raises StoreError, VersionError."""
        if self._ahead:
            self._ahead = False
            return self.manifest
        for _ in range(TURNS):
            before, older = self._content, self.older
            try:
                self._take(self._store.load(MANIFEST, before))
            except UnreadableError:
                self._take(None)
            if self.older is None or (older and self._content is before):
                break  # else others may have swapped, and told it, between both
        return self.manifest

    def earlier(self, archive: bytes) -> Manifest | None:
        """Return the manifest before one that is lost, as far as the store keeps it, of this archive.

        Raises StoreError, VersionError.
        """
        for data in self._store.earlier(MANIFEST):
            with suppress(CorruptError):
                if (found := Manifest.decode(data)).settings.archive == archive:
                    return found
        return None

    def load_ahead(self) -> Manifest:
        """Return the present manifest, and let the next `load` return it too: both are of one call.

        Raises the errors of `load`.
        """
        found = self.load()
        self._ahead = True
        return found

    def swap(
        self, change: Callable[[Manifest | None], Manifest], *, repaired: bool = False, anew: bool = False
    ) -> bool:
        """Put a manifest in place of the present one, and return whether it was put.

        Where it says the same as the present one, that is made durable: its writer may be between link and sync.

        ``change``: returns the next manifest for the present one; its generation and random bytes are set here. It gets
        None where that cannot be used. ``repaired``: its generation is above what others saw, so that none of them
        takes it for one of a backup. ``anew``: it is put even where it says the same.

        Raises its errors, StoreError, WriterFailed. After a StoreError the manifest may have been put all the same.
        """
        if self.manifest and self._store.seen.highest().get(self.manifest.settings.archive, 0) > self._highest:
            self.find()  # others swapped meanwhile, or it was brought back since it was loaded
        for turn in range(TURNS):
            base = self.manifest
            fresh, drafted = change(base), self._drafted
            if not drafted or drafted.asked is not fresh or drafted.base is not base or repaired:
                if base and fresh.state == base.state and not (repaired or anew):
                    self._store.settle(MANIFEST)
                    return False
                own = self._highest + 1 if base and not repaired else self._fresh_generation(fresh.settings.archive)
                drafted = self._next(fresh, own)
            data, generation = drafted.data, drafted.next.generation
            # who lost waits before it loads, not after: the next swap builds on what is then the newest
            wait = random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**turn))
            spare = base is not None and base.state == Manifest(base.settings).state  # repair knows it without
            after = self._store.swap(MANIFEST, data, self._content, wait, spare)
            if after is not None and after.data == data:  # it was put, whatever others put since
                self._content, self.manifest, self.older, self._highest = after, drafted.next, None, generation
                self._store.seen.note(fresh.settings.archive, generation, durable=True)
                return True
            self._take(after)
            if self.older:
                self.find()
        raise StoreError("others replace the manifest all the time: what was put is not acknowledged, try again")

    def draft(self, fresh: Manifest) -> bytes:
        """Return what `swap` puts in place of the present manifest, where its change returns this, which is another."""
        self._drafted = self._next(fresh, self._highest + 1)
        return self._drafted.data

    def _next(self, fresh: Manifest, generation: int) -> _NextManifest:
        made = replace(fresh, generation=generation, random=self._store.random(SIZE))
        return _NextManifest(self.manifest, fresh, made, made.encode())

    def _fresh_generation(self, archive: bytes) -> int:
        """Return a generation above those that this machine saw, and above what clocks gave to others.

        A damaged manifest tells its own too, which counts where no clock would be so wrong.
        """
        clock = self._store.ticks()
        damaged = claimed_generation(self._content.data) if self._content and not self.manifest else 0
        seen = self._store.seen.highest().get(archive, 0)
        return max(1 + max(self._highest, seen, damaged if damaged < clock + DAY else 0), clock)

    def _take(self, content: Content | None) -> None:
        """Remember a content and its manifest, if that can be used. Raises VersionError."""
        found = self.manifest or self.older
        if content is None or content != self._content:
            self._content = self.manifest = self.older = found = None
            if content is None:
                return
            self._content = content
            with suppress(CorruptError):
                found = Manifest.decode(content.data)
        if found is None:
            return
        # of the same content too: others may have put a newer one before it was brought back
        self._highest = max(self._highest, self._store.seen.highest().get(found.settings.archive, 0))
        if found.generation >= self._highest:
            self.manifest, self.older, self._highest = found, None, found.generation
            self._store.seen.note(found.settings.archive, found.generation, durable=self._store.remote)
        else:
            self.manifest, self.older = None, found
