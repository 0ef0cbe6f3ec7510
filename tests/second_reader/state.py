"""The state of an archive: settings, manifest, indexes and parity, as archive/format/FORMAT.md describes them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from tests.second_reader.fields import Damaged, Fields, LowBits, Newer
from tests.second_reader.model import Array, digest

Files = Mapping[str, bytes]  # by name, such as "packs/0f3a..."
Entries = list[tuple[int, bytes, int]]  # first 36 bits of an id, pack, offset of the block
SETTINGS_VERSION, MANIFEST_VERSION, PARITY_VERSION, INDEX_VERSION = 6, 6, 3, 5
COPIED = 4096  # bytes of a pack up to which its parity is a copy of it


def files_of(folder: Path) -> Files:
    """Return the files of an archive that is a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Settings(NamedTuple):
    """The settings of an archive."""

    archive: bytes
    sealed: bool


def settings_of(files: Files) -> Settings:
    """Return the settings of `archive.json`, else of its copy, else of the manifest."""
    for name in ("archive.json", "parity/archive.json"):
        try:
            return _settings(files.get(name, b""))
        except Damaged:
            continue
    return manifest_of(files).settings


def _settings(data: bytes) -> Settings:
    try:
        about = json.loads(data)
        line = json.dumps({key: value for key, value in about.items() if key != "check"}, separators=(",", ":"))
        check = digest("pltz archive", line.encode()).hex()
        if data != (line[:-1] + f',"check":"{check}"}}\n').encode():
            raise Damaged("archive.json differs from its check")
        if about["format"] != SETTINGS_VERSION or not set(about["features"]) <= {"sealed"}:
            raise Newer("archive.json of another version")
        return Settings(bytes.fromhex(about["archive"]), "sealed" in about["features"])
    except (ValueError, KeyError, AttributeError) as error:
        raise Damaged("archive.json is none") from error


class Manifest(NamedTuple):
    """The state of an archive. ``packs``: those with rows, their sizes and entries; the other tables are by pack."""

    settings: Settings
    generation: int
    indexes: list[bytes]
    packs: dict[bytes, tuple[int, list[Entries]]]
    condemned: dict[bytes, int]
    gone: dict[bytes, int]
    lost: dict[bytes, bool]  # whether the loss is acknowledged

    def named(self, files: Files) -> dict[bytes, int]:
        """Return the packs that it names, and their sizes."""
        found = {pack: row[0] for pack, row in self.packs.items()}
        for index in self.indexes:
            found |= packs_of(files, index)
        return {pack: size for pack, size in found.items() if pack not in self.gone and pack not in self.lost}


def manifest_of(files: Files) -> Manifest:
    """Return the manifest: in a folder that of the highest number, else the one of a bucket."""
    numbered = max((name for name in files if name.startswith("manifest/0")), default="manifest/current")
    if numbered not in files:
        raise Damaged("no manifest")
    fields = checked(files[numbered], "pltz manifest", b"PLTm", MANIFEST_VERSION)
    flags, _ = fields.number(1), fields.zeros(2)
    archive, generation, _ = fields.take(16), fields.number(8), fields.take(16)
    if flags > 1:
        raise Newer("a manifest with flags of a newer version")
    counts = fields.numbers(4, 6)
    indexes = [fields.take(16) for _ in range(counts[0])]
    packs = {}
    for _ in range(counts[1]):
        pack, size, *entries = fields.take(16), *(fields.number(4) for _ in range(4))
        sections = []
        for count in entries:
            keys = [int.from_bytes(fields.take(5), "big") for _ in range(count)]
            sections.append([(key, pack, fields.number(4)) for key in keys])
        packs[pack] = size, sections
    condemned, gone = ({fields.take(16): fields.number(8) for _ in range(n)} for n in counts[2:4])
    lost = {}
    for _ in range(counts[4]):
        pack, _, acknowledged, _ = fields.take(16), fields.take(12), fields.number(8), fields.take(16)
        lost[pack] = acknowledged > 0
    fields.take(32 * counts[5])  # lists: packs tell the same
    fields.end()
    return Manifest(Settings(archive, bool(flags)), generation, indexes, packs, condemned, gone, lost)


def checked(data: bytes, person: str, magic: bytes, version: int) -> Fields:
    """Return the fields behind magic and version of a file that ends in its digest."""
    if digest(person, data[:-16]) != data[-16:] or data[:4] != magic:
        raise Damaged(f"a file that differs from its digest ({person})")
    fields = Fields(data[:-16], 4)
    if (found := fields.number(1)) != version:
        raise Newer(f"version {found} ({person})")
    return fields


# ---- indexes


def index_of(data: bytes, name: bytes) -> list[Entries]:
    """Return the entries of segments, sessions and marks of an index. ``name``: its digest."""
    if data[28:44] != name or digest("pltz index", data[:28], data[44:]) != name or data[:4] != b"PLTi":
        raise Damaged("an index that differs from its name")
    fields = Fields(data, 4)
    if fields.number(1) != INDEX_VERSION or fields.number(3):
        raise Newer("an index of another version")
    pack_count, *counts, check = (fields.number(4) for _ in range(5))
    packs = packs_of({f"index/{name.hex()}": data}, name)
    fields.take(16 + 20 * pack_count)
    begin, places = fields.at, max(sum(packs.values()) - 1, 0).bit_length()
    bits = [max(0, count.bit_length() - 11) for count in counts]
    ends = [fields.numbers(4, 1 << some if count else 0) for count, some in zip(counts, bits, strict=True)]
    if crc32(data[begin : fields.at], check) != fields.number(4):
        raise Damaged("the pages of an index differ from their check")
    page, sections = 0, []
    for upto, some in zip(ends, bits, strict=True):
        entries, before, rest = [], 0, 36 - some
        for number, end in enumerate(upto):
            count = end - before
            low = max(0, rest - count.bit_length())
            sizes = [size + 7 >> 3 for size in (count + (1 << rest - low), low * count, places * count) if count]
            body = _page(fields, sum(sizes), check, page)
            steps, lows, addresses = (LowBits(Fields(body.take(size))) for size in sizes or (0, 0, 0))
            page, high = page + 1, 0
            for _ in range(count):
                while not steps.take(1):
                    high += 1
                key = number << rest | high << low | lows.take(low)
                entries.append((key, *_where(packs, addresses.take(places))))
            before = end
        sections.append(entries)
    fields.end()
    return sections


def packs_of(files: Files, name: bytes) -> dict[bytes, int]:
    """Return the pack table of an index, or of its copy: packs and their sizes."""
    for path in (f"index/{name.hex()}", f"parity/index-{name.hex()}"):
        fields = Fields(files.get(path, b""))
        try:
            head = fields.take(44)
            packs = {fields.take(16): fields.number(4) for _ in range(int.from_bytes(head[8:12], "little"))}
            check = crc32(fields.data[44 : fields.at], crc32(head[:24]))
            if head[:4] == b"PLTi" and head[24:] == check.to_bytes(4, "little") + name:
                return packs
        except Damaged:
            continue
    raise Damaged("an index is lost with the copy of its pack table")


def _page(fields: Fields, size: int, check: int, number: int) -> Fields:
    data = fields.take(size)
    if crc32(data, (check + 1 + number) & 0xFFFFFFFF) != fields.number(4):
        raise Damaged("a page of an index differs from its check")
    return Fields(data)


def _where(packs: Mapping[bytes, int], address: int) -> tuple[bytes, int]:
    for pack, size in packs.items():
        if address < size:
            return pack, address
        address -= size
    raise Damaged("an address behind all packs")


# ---- parity


@functools.cache
def field() -> tuple[Array, Array]:
    """Return products (256, 256) and inverses (256,) of GF(2^8)."""
    powers = [1]
    while len(powers) < 255:
        powers.append((powers[-1] << 1) ^ (0x11D if powers[-1] & 128 else 0))
    logs = np.array([0, *(powers.index(number) for number in range(1, 256))])
    products = np.array(powers, np.uint8)[(logs[:, None] + logs) % 255]
    products[0] = products[:, 0] = 0
    return products, np.array([0, *(powers[-log % 255] for log in logs[1:])], np.uint8)


def restored(parity: bytes, pack: bytes, remains: bytes) -> bytes:
    """Return a pack by its parity. ``pack``: its id; ``remains``: what is left of it."""
    if parity[:4] != b"PLTr" and parity[-4:] != b"rTLP":  # a copy, and a check of each 32 bytes
        count = -(-len(parity) // 36)
        copy, words, found = parity[: -4 * count], Fields(parity[-4 * count :]).numbers(4, count), b""
        for number, check in enumerate(words):
            both = [data[32 * number : min(32 * number + 32, len(copy))] for data in (copy, remains)]
            found += next((part for part in both if crc32(part.ljust(32, b"\0")) == check), both[1])
        return found
    size = int.from_bytes(parity[8:12], "little")
    fields = checked(parity[:size], "pltz parity", b"PLTr", PARITY_VERSION)
    fields.zeros(3)
    if fields.number(4) != size or fields.take(16) != pack:
        raise Damaged("parity of another pack")
    pack_size, width, k, m, columns = (fields.number(n) for n in (8, 4, 2, 2, 4))
    data = remains[:pack_size].ljust(k * columns * width, b"\0") + parity[size : -8 - size]
    if len(data) != (k + m) * columns * width:
        raise Damaged("parity that was cut off")
    rows = np.frombuffer(data, np.uint8).reshape(k + m, columns, width).copy()
    checks = np.reshape(fields.numbers(4, (k + m) * columns), (k + m, columns))
    products, inverses = field()
    for column in range(columns):
        whole = [row for row in range(k + m) if crc32(rows[row, column].tobytes()) == checks[row, column]]
        known, sums = [row for row in whole if row < k], [row for row in whole if row >= k]
        lost = sorted({*range(k)} - {*known})
        if not lost:
            continue
        if len(sums) < len(lost):
            raise Damaged("damage beyond parity")
        factors = inverses[np.subtract(255 + k, sums[: len(lost)])[:, None] ^ np.arange(k)]
        right = rows[sums[: len(lost)], column]
        for row in known:
            right ^= products[factors[:, row]][:, rows[row, column]]
        table = np.concatenate([factors[:, lost], right], 1)
        for n in range(len(lost)):  # no minor of a Cauchy matrix is 0: no rows are exchanged
            table[n] = products[inverses[table[n, n]]][table[n]]
            for other in {*range(len(lost))} - {n}:
                table[other] ^= products[table[other, n]][table[n]]
        rows[lost, column] = table[:, len(lost) :]
    return rows[:k].tobytes()[:pack_size]
