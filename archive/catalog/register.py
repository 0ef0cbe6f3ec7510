"""The register of the manifest: its present state as this process knows it, and swaps of the next one.

    register.load()                    the manifest, None where there is none that can be used
    register.swap(lambda base: ...)    the manifest that was put in place of the present one, however many others swap

Spec: FORMAT.md, "Manifest".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from pltz.archive.errors import StoreError, UnreadableError
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.object_names import MANIFEST
from pltz.archive.storage.store import Content, Store
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.identity import SIZE

TURNS = 200  # swaps in which others may be first
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.3  # seconds
FIRST_BITS = 20  # a first generation is the time in seconds, shifted by so many bits


class ManifestRegister:
    """The manifest of an archive.

    ``manifest``: the one that was loaded or put last; None where that cannot be used: there was none, it is damaged, or
    its generation is below one that was seen. ``behind``: those two generations then, else None.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._content: Content | None = None
        self.manifest: Manifest | None = None
        self.behind: tuple[int, int] | None = None
        self._highest = 0  # generation
        self._ahead = False  # whether it was loaded for the next call of `load`

    def load(self) -> Manifest | None:
        """Return the present manifest, None where there is none that can be used. Raises StoreError, VersionError."""
        if self._ahead:
            self._ahead = False
            return self.manifest
        seen = self._store.seen()  # before the request: others swap and tell meanwhile
        try:
            return self._take(self._store.load(MANIFEST, self._content), seen)
        except UnreadableError:
            return self._take(None)

    def load_ahead(self) -> Manifest | None:
        """Return the present manifest, and let the next `load` return it too: both are of one call.

        Raises the errors of `load`.
        """
        found = self.load()
        self._ahead = True
        return found

    def swap(self, change: Callable[[Manifest | None], Manifest], *, always: bool) -> bool:
        """Put a manifest in place of the present one, and return whether it was put.

        ``change``: returns the next manifest for the present one; its generation and random bytes are set here.
        ``always``: put it where it says the same too. What a killed writer left beside the present one goes then.
        Its generation is above all that clocks gave before: all that is there was listed, whatever others saw.

        Raises its errors, StoreError, WriterFailed. After a StoreError the manifest may have been put all the same.
        """
        for turn in range(TURNS):
            base = self.manifest
            fresh = change(base)
            if self.manifest is not base:  # the change looked again, and found another
                continue
            if base and fresh.state == base.state and not always:
                return False
            first = 0 if base and not always else self._store.now() << FIRST_BITS
            generation = max(self._highest + 1, first)
            data = replace(fresh, generation=generation, random=self._store.random(SIZE)).encode()
            # who lost waits before it loads, not after: the next swap builds on what is then the newest
            wait = random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**turn))
            after = self._store.swap(MANIFEST, data, self._content, wait)
            self._take(after)
            if after and after.data == data:
                return True
        raise StoreError("others replace the manifest all the time: what was put is not acknowledged, try again")

    def _take(self, content: Content | None, seen: Mapping[bytes, int] = MappingProxyType({})) -> Manifest | None:
        """Remember a content and return its manifest, if it can be used. ``seen``: as of before it was asked for.

        Raises VersionError.
        """
        if content is None:
            self._content = self.manifest = self.behind = None
        elif content != self._content:
            self._content, self.manifest, self.behind = content, None, None
            try:
                found = Manifest.decode(content.data)
            except CorruptError:
                return None
            self._highest = max(self._highest, seen.get(found.archive, 0))
            if found.generation >= self._highest:
                self.manifest, self._highest = found, found.generation
                self._store.note_seen(found.archive, found.generation)
            else:
                self.behind = found.generation, self._highest
        return self.manifest
