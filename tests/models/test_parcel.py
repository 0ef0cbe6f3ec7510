"""Files in pieces come back whole, or a named error says what is wrong (models/training/parcel.py)."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard

from pltz.models.training import parcel
from pltz.plt_codec.errors import ModelError, UsageError

FILES = {"a.bin": bytes(range(256)) * 40, "b.txt": b"words " * 10, "empty": b""}


def no_say(line: str) -> None:
    """Nobody listens."""


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a parcel `net` of several pieces."""
    monkeypatch.setattr(parcel, "PIECE", 100)
    source = tmp_path / "source"
    source.mkdir()
    for name, data in FILES.items():
        (source / name).write_bytes(data)
    parcel.pack(sorted(source.iterdir()), tmp_path / "pieces", "net")
    return tmp_path / "pieces"


def test_files_come_back(packed: Path, tmp_path: Path) -> None:
    sizes = [path.stat().st_size for path in sorted(packed.glob("net.[0-9]*"))]
    assert len(sizes) > 2 and set(sizes[:-1]) == {100}
    into = parcel.opened(packed, "net", tmp_path / "back", no_say)
    assert {name: (into / name).read_bytes() for name in FILES} == FILES
    lines: list[str] = []
    parcel.opened(packed, "net", tmp_path / "back", lines.append)
    assert not lines  # once


def test_a_new_parcel_leaves_no_piece_of_the_old_one(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    parcel.pack([tmp_path / "small"], packed, "net")
    assert (parcel.opened(packed, "net", tmp_path / "back", no_say) / "small").read_bytes() == b"x"
    assert len(json.loads((packed / "net.json").read_text())["pieces"]) == len(
        list(packed.glob("net.[0-9]*"))
    )


def test_what_is_missing_or_damaged_is_named(packed: Path, tmp_path: Path) -> None:
    into, piece = tmp_path / "back", packed / "net.001"
    whole = piece.read_bytes()
    for bad in (whole[:-1], b"\0" + whole[1:]):
        piece.write_bytes(bad)
        with pytest.raises(ModelError, match=r"net\.001 is damaged"):
            parcel.opened(packed, "net", into, no_say)
    piece.unlink()
    with pytest.raises(UsageError, match=r"net\.001 is missing"):
        parcel.opened(packed, "net", into, no_say)
    (packed / "net.json").write_text("{")
    with pytest.raises(ModelError, match=r"net\.json is damaged"):
        parcel.opened(packed, "net", into, no_say)
    (packed / "net.json").unlink()
    with pytest.raises(UsageError, match="found none"):
        parcel.opened(packed, "net", into, no_say)
    assert not into.exists()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "in/side", ".."])
def test_a_hostile_parcel_writes_nothing_elsewhere(tmp_path: Path, name: str) -> None:
    """Made whole, as its digests say, but with a name that leads out of the folder, or more than it says."""
    for member, size, said in ((name, 4, 100), ("good", 200, 100)):
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            info = tarfile.TarInfo(member)
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
        data = zstandard.ZstdCompressor().compress(raw.getvalue())
        (tmp_path / "net.000").write_bytes(data)
        head = {"bytes": said, "pieces": [[len(data), parcel._digest(data)]]}
        (tmp_path / "net.json").write_text(json.dumps(head))
        with pytest.raises(ModelError, match="carry it again"):
            parcel.opened(tmp_path, "net", tmp_path / "into", no_say)
    assert not (tmp_path / "out").exists() and not (tmp_path / "into").exists()
