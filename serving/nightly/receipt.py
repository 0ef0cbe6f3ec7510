"""Receipts: sessions known to be in the archive, by their identity in a source. Spec: FORMAT.md, "Receipt".

    receipt = encode(run, rows)                  # rows: {key: value}, 16 bytes each
    ledger = ReceiptLedger(); ledger.add(receipt, name)
    ledger.last([key, ...])                      # the value of each, or None

Receipts are columns of numbers, not a database. A hundred thousand sessions take 3 MB, and larger receipts
are mapped and not read into memory. A lookup is a binary search. Two processes never write the same file,
since a file's name is the digest of its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pltz.plt_codec import SIZE, CorruptError, FormatError, Readers, VersionError, digest

U64 = npt.NDArray[np.uint64]
HEAD = struct.Struct("<4sB3sQQ")  # magic, version, reserved, run, rows
MAGIC, VERSION = b"PLTn", 1
PERSON = b"pltz receipt"
ROW = 2 * SIZE  # bytes


@dataclass(frozen=True)
class ReceiptFile:
    """An open receipt. ``columns``: (4, n) uint64, halves of keys and values, sorted by key."""

    run: int
    columns: U64

    @classmethod
    def decode(cls, data: bytes | memoryview, name: str) -> ReceiptFile:
        """Return the receipt of a file's bytes. ``name``: of the file, which must be its digest.

        Raises FormatError, VersionError and CorruptError.
        """
        if len(data) < HEAD.size + SIZE:
            raise CorruptError(f"expected at least {HEAD.size + SIZE} bytes, found {len(data)}: truncated")
        magic, version, reserved, run, count = HEAD.unpack(data[: HEAD.size])
        if magic != MAGIC:
            raise FormatError(f"expected a receipt, found {bytes(magic)!r}")
        read = VERSIONS[version]
        if any(reserved):
            raise VersionError("the receipt has fields of a newer version: use a newer pltz")
        if not digest(PERSON, data[:-SIZE]).hex() == bytes(data[-SIZE:]).hex() == name:
            raise CorruptError("its digest is not its name: damaged")
        return cls(run, read(data, count))

    def __len__(self) -> int:
        return int(self.columns.shape[1])


def _read(data: bytes | memoryview, count: int) -> U64:
    """Return the columns (4, count) of a receipt."""
    if len(data) != HEAD.size + ROW * count + SIZE:
        raise CorruptError(f"expected {count} rows of {ROW} bytes, found {len(data)} bytes in all")
    return np.frombuffer(data, "<u8", 4 * count, HEAD.size).reshape(4, count).astype(np.uint64, copy=False)


VERSIONS = Readers("the receipt", {VERSION: _read})


def encode(run: int, rows: Mapping[bytes, bytes]) -> tuple[str, bytes]:
    """Return name and bytes of a receipt.

    >>> name, data = encode(1, {bytes(16): bytes(range(16))})
    >>> len(data), len(ReceiptFile.decode(data, name))
    (72, 1)
    """
    table = np.frombuffer(b"".join(k + v for k, v in rows.items()), "<u8").reshape(len(rows), 4)
    return _packed(run, table.T)


def merged(receipts: Sequence[ReceiptFile]) -> tuple[str, bytes]:
    """Return name and bytes of one receipt that replaces several.

    Of equal keys, the one of the last run holds.
    """
    columns = np.concatenate([r.columns for r in receipts], axis=1)
    runs = np.repeat([r.run for r in receipts], [len(r) for r in receipts]).astype(np.uint64)
    order = np.lexsort((runs, columns[1], columns[0]))
    columns = columns[:, order]
    last = np.ones(columns.shape[1], bool)
    last[:-1] = (columns[:2, 1:] != columns[:2, :-1]).any(axis=0)
    return _packed(max(r.run for r in receipts), columns[:, last])


def _packed(run: int, columns: U64) -> tuple[str, bytes]:
    count = columns.shape[1]
    columns = columns[:, np.lexsort((columns[1], columns[0]))]
    whole = HEAD.pack(MAGIC, VERSION, bytes(3), run, count) + np.ascontiguousarray(columns, "<u8").tobytes()
    name = digest(PERSON, whole)
    return name.hex(), whole + name


class ReceiptLedger:
    """Several receipts together: the last value of each key."""

    def __init__(self) -> None:
        self._receipts: dict[str, ReceiptFile] = {}

    @property
    def names(self) -> set[str]:
        """Return the names of its receipts."""
        return set(self._receipts)

    @property
    def receipts(self) -> list[ReceiptFile]:
        """Return the receipts, the last run first."""
        return sorted(self._receipts.values(), key=lambda r: -r.run)

    @property
    def run(self) -> int:
        """Return the last run that left a receipt, or 0 for none."""
        return max((r.run for r in self._receipts.values()), default=0)

    def add(self, name: str, receipt: ReceiptFile) -> None:
        """Add a receipt."""
        self._receipts[name] = receipt

    def keep(self, names: Iterable[str]) -> None:
        """Drop all other receipts."""
        kept = set(names)
        self._receipts = {n: r for n, r in self._receipts.items() if n in kept}

    def last(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None where there is none. Keys and values have 16 bytes."""
        found: list[bytes | None] = [None] * len(keys)
        left = np.arange(len(keys))
        wanted = np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
        for receipt in self.receipts:
            if not len(receipt) or not len(left):
                continue
            rows, hit = _search(receipt.columns, wanted[left])
            values = np.ascontiguousarray(receipt.columns[2:, rows[hit]].T, "<u8")
            for number, value in zip(left[hit].tolist(), values, strict=True):
                found[number] = value.tobytes()
            left = left[~hit]
        return found


def _search(columns: U64, wanted: U64) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the rows of keys, and whether each was found; both (n,). ``wanted``: (n, 2).

    Of keys that share their first half only one is found. The others are put again.
    """
    rows = np.minimum(np.searchsorted(columns[0], wanted[:, 0]), columns.shape[1] - 1)
    return rows, (columns[0, rows] == wanted[:, 0]) & (columns[1, rows] == wanted[:, 1])
