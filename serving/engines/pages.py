"""Names of KV pages: a page is found only by an engine whose bytes under that name would be the same.

A page of KV (a block of vLLM, a page of SGLang) follows from the weights, the arrangement of the numbers in memory,
and every token up to its end. So the *space* of a page covers weights and arrangement, and its *name* the tokens. Both
are kept in a `PageFolder`. This module imports no engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import digest

ROOT, CHAIN = b"pltz page root", b"pltz page"
MAX_PAGE = 1 << 16  # tokens


def space_of(engine: str, target: bytes, arrangement: Any) -> bytes:
    """Return the 16 bytes that pages of equal weights and arrangement share.

    Args:
        engine: its name. Pages are never shared by two engines.
        target: fingerprint of the weights, 16 bytes.
        arrangement: types, shapes and layout of the numbers, rank and other settings, as JSON can hold them.
    """
    return digest(b"pltz pages", engine.encode(), b"\0", target, json.dumps(arrangement, sort_keys=True).encode())


class PageNames:
    """The names of a sequence's full pages, made as it grows. Not safe for several threads.

    Each page's name covers the one before it. So equal names mean equal tokens from the beginning, under one salt.

    ``page``: tokens of each. ``salt``: pages are shared only under the same one; None for none.
    """

    def __init__(self, page: int, salt: str | None = None) -> None:
        if not 0 < page <= MAX_PAGE:
            raise UsageError(f"expected pages of 1 to {MAX_PAGE} tokens, got {page}")
        self.page = page
        self.names: list[bytes] = []
        salted = b"" if salt is None else b"\1" + salt.encode("utf-8", "surrogatepass")
        self._last = hashlib.blake2b(salted, person=ROOT, digest_size=32).digest()

    def extend(self, ids: Sequence[int], count: int) -> list[bytes]:
        """Return the names of the first ``count`` pages, and remember them.

        Args:
            ids: tokens of the sequence from its beginning, each from 0 to 2^31 - 1.
            count: pages; at most as many as the ids fill.

        Raises UsageError for too few ids, and for an id that cannot be.
        """
        self._grow(ids, count)
        return self.names[:count]

    def name(self, ids: Sequence[int], number: int) -> bytes:
        """Return the name of one page, and remember those up to it. Arguments and errors: as those of `extend`."""
        self._grow(ids, number + 1)
        return self.names[number]

    def _grow(self, ids: Sequence[int], count: int) -> None:
        import numpy as np

        for number in range(len(self.names), count):
            some = np.array(ids[number * self.page : (number + 1) * self.page], dtype=np.int64)
            if len(some) != self.page or some.min() < 0 or some.max() >= 1 << 31:
                raise UsageError(f"expected {self.page} token ids for page {number}, from 0 to 2^31 - 1")
            data = self._last + some.astype("<i4").tobytes()
            self._last = hashlib.blake2b(data, person=CHAIN, digest_size=32).digest()
            self.names.append(self._last)
