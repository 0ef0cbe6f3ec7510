"""The state of an archive: manifest, pack tables and parity, as archive/format/FORMAT.md describes them."""

from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np

from tests.second_reader.fields import Fields, Newer, first, refuse
from tests.second_reader.model import Array, digest

Files = Mapping[str, bytes]  # by name, such as "packs/0f3a..."
MANIFEST_VERSION, PARITY_VERSION = 1, 1


def files_of(folder: Path) -> Files:
    """Return the files of an archive that is a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The archive's id, whether it is sealed, the packs that the manifest names, and those whose loss nobody acknowledged.
State = namedtuple("State", "archive sealed packs lost")


def state_of(files: Files) -> State:
    """Return the state by the manifest: in a folder that of the highest number, else the one of a bucket."""
    name = max((name for name in files if name.startswith("manifest/0")), default="manifest/current")
    fields = checked(files.get(name, b""), "pltz manifest", b"PLTm", MANIFEST_VERSION)
    flags, reserved, archive, _, _, *counts = fields.unpack("BH16sQ16s7I")
    refuse(flags > 7 or reserved, "a manifest with flags of a newer version", Newer)
    packs = [pack for _ in range(counts[0]) for pack in packs_of(files, fields.take(16))]
    for _ in range(counts[1]):
        pack, _, *entries = fields.unpack("16s4I")
        packs.append(pack)
        fields.take(9 * sum(entries))  # where the records are; all packs are read
    fields.take(24 * counts[2])  # condemned
    gone = [fields.unpack("16sQ")[0] for _ in range(counts[3])]
    losses = {pack: known for pack, _, known, _ in (fields.unpack("16s12sQ16s") for _ in range(counts[4]))}
    fields.take(32 * counts[5])  # lists: packs tell the same
    for _ in range(counts[6]):
        fields.take(fields.unpack("I")[0])  # holds: readers need none
    fields.take(fields.unpack("16sQI16s16s16sI")[6])  # clock and audit: the same
    fields.end()
    named = [pack for pack in packs if pack not in gone and pack not in losses]
    return State(archive, flags & 1 == 1, named, [pack for pack, known in losses.items() if not known])


def checked(data: bytes, person: str, magic: bytes, version: int) -> Fields:
    """Return the fields behind magic and version of a file that ends in its digest."""
    refuse((data[:4], data[-16:]) != (magic, digest(person, data[:-16])), f"a file that is not its digest's ({person})")
    fields = Fields(data[:-16], 4)
    refuse((found := fields.number(1)) != version, f"version {found} ({person})", Newer)
    return fields


def packs_of(files: Files, name: bytes) -> dict[bytes, int]:
    """Return the pack table of an index, or of its copy: packs and their sizes."""

    def read(path: str) -> dict[bytes, int]:
        fields = Fields(files.get(path, b""))
        head, check, own = fields.unpack("24sI16s")
        packs = dict(fields.unpack("16sI") for _ in range(int.from_bytes(head[8:12], "little")))
        refuse((own, check) != (name, crc32(head + fields.data[44 : fields.at])), "a pack table of another check")
        return packs

    return dict(first(read, (f"index/{name.hex()}", f"parity/index-{name.hex()}")))


@cache
def field() -> tuple[Array, Array]:
    """Return products (256, 256) and inverses (256,) of GF(2^8)."""
    powers = [1]
    while len(powers) < 255:
        powers.append((powers[-1] << 1) ^ (0x11D if powers[-1] & 128 else 0))
    products = np.zeros((256, 256), np.uint8)
    products[np.ix_(powers, powers)] = np.array(powers)[np.add.outer(range(255), range(255)) % 255]
    return products, (products == 1).argmax(1)


def restored(parity: bytes, pack: bytes, remains: bytes) -> bytes:
    """Return a pack by its parity. ``pack``: its id; ``remains``: what is left of it."""
    if parity[:4] != b"PLTr" and parity[-4:] != b"rTLP":
        return parity[: len(parity) - 4 * -(-len(parity) // 36)]  # a copy, and a check of each 32 bytes of it
    size = int.from_bytes(parity[8:12], "little")
    fields = checked(parity[:size], "pltz parity", b"PLTr", PARITY_VERSION)
    *reserved, head_size, of, pack_size, width, k, m, columns = fields.unpack("3BI16sQIHHI")
    refuse(any(reserved) or head_size != size or of != pack, "parity of another pack")
    data = remains[:pack_size].ljust(k * columns * width, b"\0") + parity[size : -8 - size]
    refuse(len(data) != (k + m) * columns * width, "parity that was cut off")
    rows = np.frombuffer(data, np.uint8).reshape(k + m, columns, width).copy()
    checks = np.reshape(fields.unpack(f"{(k + m) * columns}I"), (k + m, columns))
    products, inverses = field()
    sums_of = np.concatenate([np.eye(k, dtype=int), inverses[np.arange(255, 255 - m, -1)[:, None] ^ np.arange(k)]])
    for column in range(columns):
        whole = [crc32(rows[row, column].tobytes()) == checks[row, column] for row in range(k + m)]
        spare = [row for row in range(k, k + m) if whole[row]]
        refuse(whole[:k].count(False) > len(spare), "damage beyond parity")
        use = [row if whole[row] else spare.pop() for row in range(k)]
        table = np.concatenate([sums_of[use], rows[use, column]], 1)
        for n in range(k) if use != [*range(k)] else ():  # no minor of a Cauchy matrix is 0: no rows are exchanged
            table[n] = products[inverses[table[n, n]], table[n]]
            factors = np.where(np.arange(k) == n, 0, table[:, n])
            table ^= products[factors[:, None], table[n]]
        rows[:k, column] = table[:, k:]
    return rows[:k].tobytes()[:pack_size]
