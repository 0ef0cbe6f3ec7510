"""Slot files of a hierarchy kept as base plus delta, and spliced back byte for byte. Spec: FORMAT.md.

    platform.bin                                       saved by llama-server, kept whole
    delta(platform.bin, community.bin)                 the KV of the community's prompt alone
    delta(community.bin, bot.bin)                      the KV of the bot's prompt alone
    splice(community.bin, delta) == bot.bin

The server restores a base, prefills what is new, and saves the slot again: the KV of the base is the same bytes. How
many cells share them is found by comparing, never assumed. A delta names its base and its result by digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import numpy as np
import zstandard

from pltz.experiments.slots.slot_layout import Rows, SlotLayout
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, UsageError, VersionError

MAGIC, VERSION = b"PLTZSLOT", 1
FIELDS = struct.Struct("<8sI32s32sQIII")
DIGEST = 32
MAX_SIZE = 1 << 40  # bytes of a slot file
MAX_SKELETON = 1 << 26


def delta(base: bytes | memoryview, slot: bytes | memoryview) -> bytes:
    """Return what a slot file has beyond its base, after a trial that base and delta give it back.

    Raises UsageError where the two share no cell or are of other models, and as `SlotLayout.of`.
    """
    base, slot = memoryview(base), memoryview(slot)
    below, here = SlotLayout.of(base, "the base"), SlotLayout.of(slot, "the slot file")
    if below.shape != here.shape:
        raise UsageError("base and slot file have other layers, types or sizes: they are not of one model and KV type")
    shared = _shared(base, below, slot, here)
    if not shared:
        raise UsageError("base and slot file share no cell: give the slot file that this one was restored from")
    skeleton = here.skeleton(slot)
    if len(skeleton) > MAX_SKELETON:
        raise ContentError(f"expected at most {MAX_SKELETON} bytes beside the rows, found {len(skeleton)}")
    packed = zstandard.ZstdCompressor(level=9).compress(skeleton)
    digests = hashlib.sha256(base).digest(), hashlib.sha256(slot).digest()
    fields = FIELDS.pack(MAGIC, VERSION, *digests, len(slot), shared, len(skeleton), len(packed)) + packed
    rows = [slot[a:b] for one in here.arrays for a, b in _rest(one, here.cells, shared)]
    found = b"".join([fields, hashlib.sha256(fields).digest(), *rows])
    if splice(base, found) != slot:
        raise CorruptError("base and delta do not give the slot file back: the file changed meanwhile, save it again")
    return found


def splice(base: bytes | memoryview, change: bytes | memoryview) -> bytes:
    """Return the slot file that a delta was made of.

    Raises:
        FormatError: the delta is none, or the base is no slot file of this layout.
        VersionError: the delta or the base is of another version.
        UsageError: the base is another one.
        CorruptError: the delta is damaged.
    """
    base, change = memoryview(base), memoryview(change)
    if bytes(change[:8]) != MAGIC:
        raise FormatError(f"expected a slot delta, which begins with {MAGIC!r}")
    if len(change) < FIELDS.size:
        raise CorruptError("the slot delta is cut short: copy it again")
    _, version, below, whole, size, shared, bare, packed = FIELDS.unpack_from(change)
    if version != VERSION:
        raise VersionError(f"expected a slot delta of version {VERSION}, found {version}: take the pltz that wrote it")
    end = FIELDS.size + packed
    if hashlib.sha256(change[:end]).digest() != bytes(change[end : end + DIGEST]):
        raise CorruptError("the slot delta is damaged or cut short: its checksum differs, copy it again")
    if hashlib.sha256(base).digest() != below:
        raise UsageError(f"expected the base with SHA-256 {below.hex()}: this delta was made from another slot file")
    if size > MAX_SIZE or bare > MAX_SKELETON:
        raise CorruptError(f"the slot delta says {size} bytes with a skeleton of {bare}: damaged")
    skeleton = _unpacked(change[FIELDS.size : end], bare)
    under = SlotLayout.of(base, "the base")
    here = SlotLayout.of_skeleton(memoryview(skeleton), size, "the slot delta")
    if here.shape != under.shape or shared > min(here.cells, under.cells):
        raise CorruptError("the slot delta does not fit its base: damaged")
    found = b"".join(_pieces(base, under, here, skeleton, change[end + DIGEST :], shared))
    if len(found) != size or hashlib.sha256(found).digest() != whole:
        raise CorruptError("the rows of the slot delta are damaged or cut short: copy it again")
    return found


def _pieces(
    base: memoryview, under: SlotLayout, here: SlotLayout, skeleton: bytes, rows: memoryview, shared: int
) -> Iterator[bytes | memoryview]:
    """Yield the slot file: its skeleton, and between its parts the cells of the base and then its own."""
    at = taken = written = 0
    for below, one in zip(under.arrays, here.arrays, strict=True):
        gap = one.start - written
        yield skeleton[at : at + gap]
        at += gap
        for number in range(one.count):
            start = below.start + number * under.cells * below.size
            yield base[start : start + shared * one.size]
            own = (here.cells - shared) * one.size
            yield rows[taken : taken + own]
            taken += own
        written = one.end(here.cells)
    yield skeleton[at:]
    yield rows[taken:]  # nothing, in a sound delta


def _rest(rows: Rows, cells: int, shared: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the cells behind the shared ones in each row of an array."""
    for number in range(rows.count):
        start = rows.start + number * cells * rows.size
        yield start + shared * rows.size, start + cells * rows.size


def _shared(base: memoryview, below: SlotLayout, slot: memoryview, here: SlotLayout) -> int:
    """Return how many first cells have equal positions, keys and values in both files."""
    shared = min(below.cells, here.cells)
    same = np.array(below.positions[:shared]) == np.array(here.positions[:shared])
    for under, one in zip(below.arrays, here.arrays, strict=True):
        left, right = (
            np.frombuffer(data[rows.start : rows.end(cells)], np.uint8).reshape(rows.count, cells, rows.size)
            for data, rows, cells in ((base, under, below.cells), (slot, one, here.cells))
        )
        same &= (left[:, :shared] == right[:, :shared]).all((0, 2))
    return int(np.argmin(same)) if not same.all() else shared


def _unpacked(packed: memoryview, size: int) -> bytes:
    try:
        if zstandard.frame_content_size(packed) != size:
            raise CorruptError(f"the slot delta is damaged: its skeleton is not of {size} bytes")
        found = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    except zstandard.ZstdError as exc:
        raise CorruptError(f"the slot delta is damaged: {exc}") from exc
    return found
