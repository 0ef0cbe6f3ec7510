"""Make the golden archives beside this file: `python -m tests.golden.archives.make`.

Each is a whole archive as a ZIP of its files: `good-*` must be read as it was put, `bad-*` has one defect, named by
the file. They are made
once, by the format as it was then, and never rewritten: what they hold is in `SESSIONS`, what is expected of them in
tests/archive/test_golden.py.
"""

import io
import itertools
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pltz.archive.encryption.keys import Secret
from pltz.archive.format.manifest import PERSON as MANIFEST_PERSON, VERSION as MANIFEST_VERSION, Manifest
from pltz.archive.format.object_names import FOLDERS, SETTINGS, SETTINGS_COPY
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.record import NOTHING, ContentFacts
from pltz.archive.format.settings import FORMAT
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import BundleCodec, BytesCodec, PpmdCodec, SegmentCodec
from pltz.coding.codecs.logs import LogCodec
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.identity import digest
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive

HERE = Path(__file__).parent
KEY = Secret(b"a key of golden archives", 0)
PROMPT = list(b"You sell bicycles and bells. ") * 3
SESSIONS: dict[tuple[str, int], list[int]] = {  # (name, version number): tokens
    ("prompt", 1): PROMPT,
    ("a", 1): PROMPT + [3] * 9,
    ("b", 1): PROMPT + [4] * 9,
    ("a", 2): PROMPT + [3] * 9 + [7],
}
FORGOTTEN = "a", 1
GREW = "support/ticket-4711"
TURNS = 20  # of that session that grows: each is put behind those before it, with a version of its own
Files = dict[str, bytes]


def good(key: Secret | None = None, seed: int = 0) -> Files:
    """Four packs of a session each and one of a mark, an index over three of them, one condemned."""
    disk = SimDisk(seed=seed)
    archive = TowerArchive.create(DirectoryStore(disk), [BytesCodec()], key=key)
    for number, ((name, _), tokens) in enumerate(SESSIONS.items()):
        if number == 3:
            archive.write_index()
        rest = [tokens[87:96], tokens[96:]]
        rows = [np.array(t) for t in (tokens[:87], *rest) if len(t)]
        archive.put([NewSession(name, rows, shared=1, tags={"n": str(number)})])
    archive.forget([archive.version(*FORGOTTEN[:1], version=1)])
    archive.collect(small=0, dead_share=0.01)
    return disk.seen.files()


def turn(number: int) -> list[int]:
    """Return the ids of a turn, 10 to 55 of them."""
    return [(number * number + 31 * i * i) % 997 for i in range(10 + 3 * number)]


def grown(*, merged: bool = False, fast: bool = False, key: Secret | None = None) -> Files:
    """A session coded by `mini` in the layout of turns, each turn after the tokens above it.

    ``merged``: join its turns and collect twice, so that the run alone is left. ``fast``: by PPMd.
    """
    disk = SimDisk(seed=2)
    archive = TowerArchive.create(DirectoryStore(disk), [grown_codec(fast=fast)], key=key)
    for n in range(1, TURNS + 1):
        archive.put([NewSession(GREW, [np.array(turn(i)) for i in range(n)], shared=1)])
    if merged:
        assert archive.join() == 1
        for _ in range(2):
            archive.collect(dead_share=0.01)
    return disk.seen.files()


PARTS: list[dict[str, list[int]]] = [  # parts of a session that were put at once, by their paths
    {"": PROMPT, "agents/one": [5] * 30, "agents/two": [5] * 30, "results/1.txt": []},
    {"agents/one": [5] * 30 + [6]},
    {"": [*PROMPT, 8], "z": [0]},
]
TOLD = ContentFacts("Where are the bells?", 12, 4711, 1_770_000_000_123_456_789, 1_769_990_000, 1_769_999_999)


def parts(key: Secret | None = None) -> Files:
    """A session with parts, of which one version is forgotten and some facts are known."""
    disk = SimDisk(seed=6)
    archive = TowerArchive.create(DirectoryStore(disk), [BytesCodec()], key=key)
    for each in PARTS:
        rows = {part: [np.array(tokens)] if tokens else [] for part, tokens in each.items()}
        archive.put(
            [NewSession("log", row, part=part, content=TOLD if not part else NOTHING) for part, row in rows.items()]
        )
    archive.forget([archive.version("log", version=1)])
    return disk.seen.files()


LOGS: dict[str, tuple[int, ...]] = {  # name: the first step of each segment, one after the other, and the last
    "shop/first": (0, 60),
    "shop/second": (20, 70, 75),  # grown by five lines
    "shop/large": (100, 700, 720),  # by PPMd
}


def lines(first: int, last: int) -> bytes:
    """Return some lines of a log of an agent."""
    made = []
    for n in range(first, last):
        said = f"Step {n}: read the file of rule {n * n % 17}, and tell why test {n % 7} of it fails on Mondays."
        head = {"uuid": digest(b"uuid", bytes([n % 256, n // 256])).hex(), "n": n, "time": 1_770_000_000_000 + 977 * n}
        made.append(json.dumps({**head, "message": {"role": "user", "content": said}}, separators=(",", ":")) + "\n")
    return "".join(made).encode()


def logs(key: Secret | None = None) -> Files:
    """Logs of agents as tables: by `mini`, grown, and by PPMd."""
    disk = SimDisk(seed=4)
    codec = log_codec()
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=key)
    for name, steps in LOGS.items():
        rows = [np.frombuffer(lines(a, b), np.uint8) for a, b in itertools.pairwise(steps)]
        codec.by_model = name != "shop/large"
        for count in range(1, len(rows) + 1):
            archive.put([NewSession(name, rows[:count], kind="text")])
    return disk.seen.files()


def log_codec() -> LogCodec:
    """Return the codec of logs."""
    return LogCodec(Bundle.load("mini"))


def grown_codec(*, fast: bool = False) -> SegmentCodec:
    """Return the codec of the session that grew."""
    return PpmdCodec(Bundle.load("mini")) if fast else BundleCodec(Bundle.load("mini"), layout="fast")


def collected() -> Files:
    """Make `good` as it is after a collector has deleted the condemned pack: it is gone."""
    disk = disk_of(good())
    TowerArchive.open(DirectoryStore(disk), [BytesCodec()]).collect(small=0, dead_share=1.0)
    return disk.seen.files()


def condemned() -> Files:
    """`good` with all packs condemned and none deleted."""
    disk = disk_of(good())
    TowerArchive.open(DirectoryStore(disk), [BytesCodec()]).collect(small=1 << 20, grace=100)
    return disk.seen.files()


def given_up(files: Files, *, acknowledged: bool = False) -> Files:
    """Return an archive as repair leaves it."""
    disk = disk_of(files)
    Repairer(DirectoryStore(disk)).run()
    if acknowledged:
        TowerArchive.open(DirectoryStore(disk), [BytesCodec()]).acknowledge()
    return disk.seen.files()


def disk_of(files: Files) -> SimDisk:
    """A disk that holds these files, and all folders."""
    state = DiskState(folders={"", *FOLDERS})
    for number, (path, data) in enumerate(files.items()):
        state.names[path], state.data[number] = number, data
    return SimDisk(state, seed=5)


def pack(files: Files, name: str, number: int = 1) -> str:
    """The pack that a version's record lies in."""
    packs = {path: Pack.of(data) for path, data in files.items() if path.startswith("packs/")}
    rows = [(item[1], path) for path, found in packs.items() for item in found.scan() if not isinstance(item, Damage)]
    return sorted((r.moment, path) for r, path in rows if r.name == name)[number - 1][1]


def parity(path: str) -> str:
    return path.replace("packs/", "parity/")


def only(files: Files, folder: str) -> str:
    [path] = [p for p in files if p.startswith(folder + "/")]
    return path


def without(files: Files, *paths: str) -> Files:
    return {path: data for path, data in files.items() if path not in paths}


def changed(files: Files, path: str, change: Callable[[bytes], bytes]) -> Files:
    return files | {path: change(files[path])}


def zeroed(begin: int, end: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        span = range(len(data))[begin:end]
        return data[: span.start] + bytes(len(span)) + data[span.stop :]

    return change


def flipped(data: bytes) -> bytes:
    """One bit, in the middle: of a pack, of its records."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def other_pack(data: bytes) -> bytes:
    """A newer version in the header of a small pack, with sums that hold; the file is called by its digest then."""
    out = bytearray(data)
    size = struct.unpack_from("<I", out, 37)[0]
    out[4] += 1
    struct.pack_into("<I", out, 41, zlib.crc32(out[45 : 45 + size], zlib.crc32(out[:41])))
    foot = bytes(out[-24:-20])
    foot += digest(b"pltz pack", bytes(out[:-24]), foot)
    return bytes(out[:-24]) + foot + zlib.crc32(foot).to_bytes(4, "little")


def newer_settings(data: bytes) -> bytes:
    return of_format(data, FORMAT + 1)


def of_format(data: bytes, version: int) -> bytes:
    """archive.json of another format, with a check that holds."""
    fields = json.loads(data)
    del fields["check"]
    fields["format"] = version

    def line() -> bytes:
        return json.dumps(fields, separators=(",", ":")).encode()

    fields["check"] = digest(b"pltz archive", line()).hex()
    return line() + b"\n"


def newer_keys(data: bytes) -> bytes:
    """Return a key file that says it is of the version after the present one."""
    newer = data[:4] + bytes([data[4] + 1]) + data[5:-16]
    return newer + digest(b"pltz key", newer)


def defects() -> dict[str, Files]:
    """Every golden archive by name."""
    g, s = good(), good(KEY)
    b, prompt, mark = pack(g, "b"), pack(g, "prompt"), pack(g, "a", 2)
    index, last = only(g, "index"), pack(g, "a", 2)
    own = "keys/" + json.loads(s[SETTINGS])["archive"]
    keys = sorted(p for p in s if p.startswith("keys/") and not p.startswith(own))
    newer = other_pack(g[last])
    other = good(seed=1)
    foreign = pack(other, "b")
    c, left = condemned(), collected()
    newer_name = "packs/" + newer[-20:-4].hex()
    return {
        "good": g,
        "good-sealed": s,
        "good-left-over-from-a-crash": g | {"tmp/0f0f": g[b][:100], "tmp/1e1e": b""},
        "good-files-of-strangers": g | {"packs/.DS_Store": b"\0", "README": b"hands off", "index/copy": b"x"},
        "good-index-missing": without(g, index),
        "good-parity-missing": without(g, parity(b)),
        "good-deleted-by-collector": left,
        "good-loss-acknowledged": given_up(without(g, b, parity(b)), acknowledged=True),
        "bad-pack-missing": without(g, b),
        "bad-condemned-pack-missing": without(c, b),
        "bad-all-packs-missing-condemned": without(c, *[p for p in c if p.startswith("packs/")]),
        "bad-loss-recorded": given_up(without(g, b, parity(b))),
        "bad-pack-empty": g | {b: b""},
        "bad-pack-bit-flipped": changed(g, b, flipped),
        "bad-pack-cut-short": changed(g, b, lambda d: d[:-50]),
        "bad-pack-grew": changed(g, b, lambda d: d + bytes(512)),
        "bad-pack-header-zeroed": changed(g, b, zeroed(0, 45)),
        "bad-pack-all-zeros": changed(g, b, lambda d: bytes(len(d))),
        "bad-pack-is-another": g | {b: g[prompt]},
        "bad-pack-of-another-archive": g | {p: other[p] for p in (foreign, parity(foreign))},
        "bad-pack-with-marks-cut-short": changed(g, mark, lambda d: d[: len(d) // 2]),
        "bad-shared-prompt-zeroed": changed(g, prompt, zeroed(100, -100)),
        "bad-parity-bit-flipped": changed(g, parity(b), flipped),
        "bad-index-bit-flipped": changed(g, index, flipped),
        "bad-index-cut-short": changed(g, index, lambda d: d[:60]),
        "good-settings-missing": without(g, SETTINGS),
        "bad-settings-zeroed": changed(g, SETTINGS, zeroed(0, 20)),
        "bad-settings-copy-zeroed": changed(g, SETTINGS_COPY, zeroed(0, 20)),
        "bad-sealed-key-copy-zeroed": changed(s, keys[0], zeroed(0, 60)),
        "bad-footer-and-parity-gone": without(changed(g, b, zeroed(-24, None)), parity(b)),  # type: ignore[arg-type]
        "bad-pack-and-parity-missing": without(g, b, parity(b)),
        "bad-record-flipped-and-parity-gone": without(changed(g, b, flipped), parity(b)),
        "bad-shared-prompt-and-parity-missing": without(g, prompt, parity(prompt)),
        "good-settings-and-copy-missing": without(g, SETTINGS, SETTINGS_COPY),
        "bad-settings-of-a-newer-version": changed(changed(g, SETTINGS, newer_settings), SETTINGS_COPY, newer_settings),
        "bad-pack-of-a-newer-version": renamed(g, last, newer_name) | {newer_name: newer},
        "bad-sealed-keys-missing": without(s, *keys),
        "bad-sealed-archive-key-missing": without(s, *(p for p in s if p.startswith(own))),
        "bad-sealed-keys-of-a-newer-version": s | {p: newer_keys(s[p]) for p in s if p.startswith("keys/")},
    }


def grown_archives() -> dict[str, Files]:
    """Return the golden archives of a session that grew, by name."""
    return {
        "good-grown": grown(), "good-grown-merged": grown(merged=True),
        "good-grown-merged-sealed": grown(merged=True, key=KEY), "good-grown-ppmd": grown(fast=True),
    }


def log_archives() -> dict[str, Files]:
    """Return the golden archives of logs of agents, and of a session with parts, by name."""
    of_parts = {"good-parts": parts(), "good-parts-sealed": parts(KEY)}
    return {"good-logs": logs(), "good-logs-sealed": logs(KEY), **of_parts}


def renamed(files: Files, old: str, new: str) -> Files:
    """Return files without a pack and its parity, and a manifest that names another in its place."""
    path = present(files)
    manifest = Manifest.decode(files[path])
    rows = {bytes.fromhex(new[6:]) if f"packs/{p.hex()}" == old else p: row for p, row in manifest.packs.items()}
    assert rows.keys() != manifest.packs.keys()
    return without(files, old, parity(old)) | {path: replace(manifest, packs=rows).encode()}


def present(files: Files) -> str:
    """Return the path of the present manifest."""
    return max(path for path in files if path.startswith("manifest/0"))


def named_archives() -> dict[str, Files]:
    """Return the golden archives of which the manifest is lost, by name."""
    named = good()
    path = present(named)
    return {
        "bad-manifest-missing": without(named, path),
        "bad-manifest-bit-flipped": changed(named, path, flipped),
        "bad-manifest-and-the-one-before-missing": without(named, path, "manifest/before"),
        "good-manifest-names-an-index-that-is-gone": without(named, only(named, "index")),
        "bad-manifest-of-a-newer-version": changed(named, path, partial(manifest_of, MANIFEST_VERSION + 1)),
    }


def manifest_of(version: int, data: bytes) -> bytes:
    """Return a manifest that says it is of another version, with the right digest."""
    body = data[:4] + bytes([version]) + data[5:-16]
    return body + digest(MANIFEST_PERSON, body)


def as_zip(files: Files) -> bytes:
    """Return files as a ZIP."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for path, data in sorted(files.items()):
            made.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


if __name__ == "__main__":
    every = defects() | grown_archives() | log_archives() | named_archives()
    for name, files in every.items():
        path = HERE / f"{name}.zip"
        if not path.exists():
            path.write_bytes(as_zip(files))
