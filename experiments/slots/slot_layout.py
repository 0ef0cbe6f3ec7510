"""SlotLayout: where the keys and values of each cell lie in a slot file of llama-server. Spec: FORMAT.md.

    b"qsgg" ... words, cells        skeleton
    layer 0: type, row size         skeleton
             row row row row        keys of the cells, one after the other
    ...

llama.cpp changes the format without notice. So every field is checked, and a file that ends elsewhere than the layout
says is refused: a model with sliding windows, recurrent states or positions in three dimensions writes other bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, VersionError
from pltz.serving.engines.llama_slots import HEAD, MAGIC, VERSION

MAX_STREAMS, MAX_LAYERS, MAX_TYPE = 256, 1024, 64
MAX_ROW = 1 << 24  # bytes of a row, and the width of a transposed one


@dataclass(frozen=True)
class Rows:
    """One array of keys or values: ``count`` rows, each of ``cells`` times ``size`` bytes, from ``start`` on.

    Keys, and values that are not transposed, are one row of rows: count 1.
    """

    start: int
    count: int
    size: int

    def end(self, cells: int) -> int:
        """Return the offset behind it."""
        return self.start + self.count * self.size * cells


@dataclass(frozen=True)
class SlotLayout:
    """The layout of one slot file. ``shape``: types and sizes of all layers, equal in files of one cache."""

    cells: int
    positions: tuple[int, ...]
    arrays: tuple[Rows, ...]
    shape: tuple[int, ...]
    size: int

    def skeleton(self, data: memoryview) -> bytes:
        """Return everything of the file but its keys and values."""
        parts, at = [], 0
        for rows in self.arrays:
            parts.append(data[at : rows.start])
            at = rows.end(self.cells)
        return b"".join([*parts, data[at:]])

    @classmethod
    def of(cls, data: memoryview, name: str) -> SlotLayout:
        """Return the layout of a whole slot file.

        Raises:
            FormatError: it is no slot file, or one of another layout.
            VersionError: one of another version.
            CorruptError: a field is invalid, or the file is cut short.
            ContentError: the slot is empty.
        """
        return _Parser(data, len(data), name).layout()

    @classmethod
    def of_skeleton(cls, skeleton: memoryview, size: int, name: str) -> SlotLayout:
        """Return the layout of a slot file of ``size`` bytes by its skeleton alone. Raises as `of`."""
        return _Parser(skeleton, size, name, bare=True).layout()


@dataclass
class _Parser:
    """Reads the skeleton's fields in order. ``bare``: the data holds no keys and values between them."""

    data: memoryview
    size: int
    name: str
    bare: bool = False
    at: int = 0
    skipped: int = 0  # bytes of keys and values that are not in the data
    arrays: list[Rows] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)

    def layout(self) -> SlotLayout:
        """Return the layout. Raises as `SlotLayout.of`."""
        self._words()
        [streams] = self._take("<I")
        self._check(1 <= streams <= MAX_STREAMS, "streams", streams)
        cells, positions = 0, list[int]()
        for _ in range(streams):
            [count] = self._take("<I")
            if not count:
                continue
            if cells:
                raise FormatError(f"{self.name}: expected the cells of one stream, found two: another layout")
            cells, positions = count, self._cells(count)
            self._layers(cells)
        if not cells:
            raise ContentError(f"{self.name}: the slot was empty")
        if self.at + self.skipped != self.size or self.at != len(self.data):
            raise FormatError(
                f"{self.name}: expected {self.at + self.skipped} bytes of one cache, found {self.size}: this model has "
                "another layout, keep the plain slot file"
            )
        return SlotLayout(cells, tuple(positions), tuple(self.arrays), tuple(self.shape), self.size)

    def _words(self) -> None:
        if len(self.data) < HEAD.size or bytes(self.data[:4]) != MAGIC:
            raise FormatError(f"{self.name} is no slot file of llama-server: it does not begin with {MAGIC!r}")
        _, version, words = self._take("<4sII")
        if version != VERSION:
            raise VersionError(f"{self.name}: expected a slot file of version {VERSION}, found {version}")
        self._room(4 * words)
        self.at += 4 * words

    def _cells(self, count: int) -> list[int]:
        """Return the positions of cells, of which all or none name their sequence."""
        self._room(8)
        named = struct.unpack_from("<I", self.data, self.at + 4)[0]
        self._check(named <= 1, "sequences of a cell", named)
        width = 2 + named
        self._room(4 * width * count)
        found = np.frombuffer(self.data, "<i4", width * count, self.at).reshape(count, width)
        self.at += 4 * width * count
        self._check(bool((found[:, 0] >= 0).all()), "the least position", int(found[:, 0].min()))
        self._check(bool((found[:, 1] == named).all()), "sequences of a cell", int(found[:, 1].max()))
        if named:
            self._check(bool((found[:, 2] >= 0).all()), "the least sequence", int(found[:, 2].min()))
            self._check(bool((found[:, 2] < MAX_STREAMS).all()), "the largest sequence", int(found[:, 2].max()))
        return [int(one) for one in found[:, 0]]

    def _layers(self, cells: int) -> None:
        transposed, layers = self._take("<II")
        self._check(transposed <= 1, "transposed", transposed)
        self._check(1 <= layers <= MAX_LAYERS, "layers", layers)
        self.shape += [transposed, layers]
        for part in range(2 * layers):
            [kind] = self._take("<i")
            self._check(0 <= kind < MAX_TYPE, "a type", kind)
            if transposed and part >= layers:
                size, count = self._take("<II")
            else:
                [size] = self._take("<Q")
                count = 1
            self._check(1 <= size <= MAX_ROW and 1 <= count <= MAX_ROW, "a row's size", max(size, count))
            rows = Rows(self.at + self.skipped, count, size)
            length = count * size * cells
            if rows.start + length > self.size:
                raise CorruptError(f"{self.name}: cut short: expected {length} bytes of a layer at {rows.start}")
            self.arrays.append(rows)
            self.shape += [kind, size, count]
            if self.bare:
                self.skipped += length
            else:
                self.at += length

    def _take(self, fields: str) -> tuple[int, ...]:
        length = struct.calcsize(fields)
        self._room(length)
        found = struct.unpack_from(fields, self.data, self.at)
        self.at += length
        return found

    def _room(self, length: int) -> None:
        if self.at + length > len(self.data):
            raise CorruptError(f"{self.name}: cut short at byte {self.at}: {length} more were expected")

    def _check(self, holds: bool, what: str, found: int) -> None:
        if not holds:
            raise FormatError(f"{self.name}: {what} is {found}: damaged, or of another layout: keep the slot file")
