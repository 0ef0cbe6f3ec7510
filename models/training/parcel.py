"""Files in pieces, for machines between which only a few files of limited size can be carried.

    NAME.000, NAME.001, ...   a tar archive, compressed by zstd, cut into pieces
    NAME.json                 size and BLAKE2b of each piece, and the archive's size; written last

A piece that is missing or changed is named before anything is unpacked.

    python -m pltz.models.training.parcel pack RUN PIECES net       # every file of the folder RUN
    python -m pltz.models.training.parcel unpack PIECES net RUN
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from pltz.models.bundle.folder import publish
from pltz.models.training.stages import Say
from pltz.plt_codec.errors import ModelError, UsageError

PIECE = 15_000_000  # bytes
WINDOW_LOG = 27  # for texts, which get small by far repeats


class _Cutter(io.RawIOBase):
    """A stream that writes its input to pieces."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.rest = folder, name, bytearray()
        self.pieces: list[list[Any]] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Take bytes, and write a piece whenever there are enough."""
        self.rest += data
        while len(self.rest) >= PIECE:
            self._piece(PIECE)
        return len(data)

    def finish(self) -> None:
        """Write the last piece."""
        if self.rest:
            self._piece(len(self.rest))

    def _piece(self, size: int) -> None:
        data = bytes(self.rest[:size])
        del self.rest[:size]
        _path(self.folder, self.name, len(self.pieces)).write_bytes(data)
        self.pieces.append([size, _digest(data)])


def pack(sources: list[Path], folder: Path, name: str, *, text: bool = False) -> int:
    """Pack files, and return the bytes of the pieces.

    `text`: look for repeats. Weights have none: Huffman codes alone do best.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}.*"):
        old.unlink()
    level = (
        zstandard.ZstdCompressionParameters.from_level(12, window_log=WINDOW_LOG, enable_ldm=True, threads=-1)
        if text
        else zstandard.ZstdCompressionParameters.from_level(1)
    )
    cutter = _Cutter(folder, name)
    compressor = zstandard.ZstdCompressor(compression_params=level)
    with (
        compressor.stream_writer(cast(IO[bytes], cutter), closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        for path in sources:
            tar.add(path, path.name, filter=_plain)
    cutter.finish()
    part = folder / f"{name}.json.part"
    total = sum(path.stat().st_size for path in sources)
    part.write_text(json.dumps({"bytes": total, "pieces": cutter.pieces}) + "\n")
    os.replace(part, folder / f"{name}.json")
    return sum(size for size, _ in cutter.pieces)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove this machine's traces: owner and time."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def opened(folder: Path, name: str, into: Path, say: Say) -> Path:
    """Return the folder `into` with a parcel's files; they are unpacked once, whole or not at all.

    Raises:
        UsageError: no such parcel, or pieces are missing.
        ModelError: a damaged piece.
    """
    head = _head(folder, name)
    mark = into / f".{name}.json"
    if mark.is_file() and json.loads(mark.read_text()) == head:
        return into
    _check(folder, name, head["pieces"])
    say(f"  unpacks {name}: {head['bytes'] / 1e6:.0f} MB")
    part = into.with_name(into.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _unpack(_read(folder, name, head["pieces"]), part, head["bytes"])
    (part / mark.name).write_text(json.dumps(head))
    shutil.rmtree(into, ignore_errors=True)
    publish(part, into)
    return into


def _head(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    try:
        head = json.loads(path.read_text("utf8"))
        pieces = [[int(size), str(digest)] for size, digest in head["pieces"]]
        return {"bytes": int(head["bytes"]), "pieces": pieces}
    except OSError as exc:
        raise UsageError(f"expected {path}, found none: the parcel {name} is not here, or not whole") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise ModelError(f"{path} is damaged ({exc!r}): carry it again") from exc


def _check(folder: Path, name: str, pieces: list[list[Any]]) -> None:
    """Check that every piece is here and unchanged."""
    for number, (size, digest) in enumerate(pieces):
        path = _path(folder, name, number)
        if not path.is_file():
            raise UsageError(
                f"{path.name} is missing: parcel {name} has {len(pieces)} pieces, carry them all"
            )
        if path.stat().st_size != size or _digest(path.read_bytes()) != digest:
            raise ModelError(f"{path} is damaged: carry it again")


def _read(folder: Path, name: str, pieces: list[list[Any]]) -> Iterator[bytes]:
    for number in range(len(pieces)):
        yield _path(folder, name, number).read_bytes()


class _Joined(io.RawIOBase):
    """A stream that reads pieces one after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.rest = pieces, b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the pieces; return the bytes read."""
        while not self.rest:
            following = next(self.pieces, None)
            if following is None:
                return 0
            self.rest = following
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count


def _unpack(pieces: Iterator[bytes], into: Path, limit: int) -> None:
    """Unpack plain files of at most `limit` bytes in all."""
    packed = io.BufferedReader(_Joined(pieces), 1 << 20)
    reader = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).stream_reader(packed)
    try:
        with tarfile.open(fileobj=reader, mode="r|") as tar:
            for member in tar:
                limit -= member.size
                if limit < 0 or not member.isreg() or Path(member.name).name != member.name:
                    raise ModelError(f"the parcel holds {member.name!r}, which it should not: carry it again")
                tar.extract(member, into, filter="data")
    except (tarfile.TarError, zstandard.ZstdError) as exc:
        raise ModelError(f"a parcel does not unpack ({exc}): carry it again") from exc


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}.{number:03}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def main() -> None:
    """Run the command line described at the top of this file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("verb", choices=["pack", "unpack"])
    p.add_argument("places", nargs=3, metavar="PLACE")
    p.add_argument("--text", action="store_true", help="pack: look for repeats")
    a = p.parse_args()
    if a.verb == "pack":
        source, folder, name = a.places
        size = pack(sorted(f for f in Path(source).iterdir() if f.is_file()), Path(folder), name, text=a.text)
        print(f"{folder}: {size / 1e6:.1f} MB")
    else:
        folder, name, into = a.places
        opened(Path(folder), name, Path(into), print)


if __name__ == "__main__":
    main()
