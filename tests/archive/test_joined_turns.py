"""Sessions whose turns were joined, by the command line: each command opens the archive anew, as a process does.

They grow put by put, in folders and in a bucket, and go through all that moves sessions to other places.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pltz.archive import opener
from pltz.archive.format.pack import Damage
from pltz.archive.format.record import RUN
from pltz.cli.root import cli

if TYPE_CHECKING:
    from tests.archive.conftest import S3Server

TURNS = 7
WORDS = ["bicycle", "bell", "pump", "chain", "saddle", "wheel", "brake", "spoke", "tyre", "lamp", "lock", "fork"]


def pltz(*words: object) -> str:
    done = CliRunner().invoke(cli, [*map(str, words)], prog_name="pltz")
    assert done.exit_code == 0, f"{words}: {done.output}"
    return done.stdout


def message(name: str, number: int) -> dict[str, str]:
    text = " ".join(WORDS[(number * 7 + n * (3 + len(name))) % len(WORDS)] for n in range(45))
    return {"role": "user" if number % 2 else "assistant", "content": f"{number} of {name}: {text}"}


def known() -> dict[str, list[Any]]:
    """Return the messages of each version of each session."""
    return {
        name: [[message(name, n) for n in range(turns)] for turns in range(1, TURNS + 1)]
        for name in ("long", "other/one")
    }


class Place:
    """An archive at a path or URL, and the options of its key."""

    def __init__(self, at: object, *key: object) -> None:
        self.at, self.key = at, key

    def pltz(self, command: str, *words: object) -> str:
        return pltz("archive", command, "-r", self.at, *words, *self.key)

    def has_all(self, tmp_path: Path, versions: dict[str, list[Any]]) -> None:
        """Compare every version of one session, the last of all, and verify."""
        self.pltz("get", "-o", tmp_path / "all.jsonl", "--force")
        rows = [json.loads(row)["messages"] for row in (tmp_path / "all.jsonl").read_text().splitlines()]
        assert rows == [wanted[-1] for wanted in versions.values()]
        for number in range(1, TURNS + 1):
            alone = json.loads(self.pltz("get", "long", "--version", number))
            assert alone["messages"] == versions["long"][number - 1]
        self.pltz("verify", "--decode")

    def runs(self) -> int:
        """Return the number of joined records in the packs."""
        listing = opener.open_at(str(self.at)).catalog.listing
        listing.read()
        found = [item for pack in listing.packs for item in listing.scan(pack, bodies=False)]
        return len([item for item in found if not isinstance(item, Damage) and item.record.mode & RUN])


@pytest.fixture
def places(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, Place]:
    """Return places of archives that are still to be made."""
    for name, value in s3.options.items():
        monkeypatch.setenv("AWS_ENDPOINT_URL" if name == "endpoint" else f"AWS_{name.upper()}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    return {
        "folder": Place(tmp_path / "cold"),
        "bucket": Place(s3.place().url),
        "sealed bucket": Place(s3.place().url, "--key-file", tmp_path / "key"),
    }


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("folder", "sealed bucket"),
        ("bucket", "folder"),
        pytest.param("sealed bucket", "folder", marks=pytest.mark.slow),
    ],
)
def test_sessions_that_grew_come_back_from_everywhere(
    tmp_path: Path, places: dict[str, Place], kind: str, other: str
) -> None:
    """Each put was a process of its own. Every version reads as it was, here and where it is copied to."""
    place, copied, versions = places[kind], places[other], known()
    for one in (place, copied):
        one.pltz("init")
    for turns in range(TURNS):
        for name, rows in versions.items():
            (tmp_path / "in.jsonl").write_text(json.dumps({"messages": rows[turns]}) + "\n")
            place.pltz("put", tmp_path / "in.jsonl", "--name", name, "--level", "2")
    assert place.runs() >= 2
    place.has_all(tmp_path, versions)
    # to another archive, to files, and to a .pltz file
    pltz("archive", "copy", "-r", place.at, copied.at, *(place.key or copied.key))
    copied.has_all(tmp_path, versions)
    place.pltz("get", "-o", f"{tmp_path}/back/")
    for name, rows in versions.items():
        [path] = tmp_path.glob(f"back/{name}.json*")
        assert json.loads(path.read_text())["messages"] == rows[-1]
    place.pltz("get", "-o", tmp_path / "last.pltz")
    pltz("decompress", tmp_path / "last.pltz", "-o", tmp_path / "last.jsonl")
    last = [json.loads(row)["messages"] for row in (tmp_path / "last.jsonl").read_text().splitlines()]
    assert last == [rows[-1] for rows in versions.values()]
    # what moves records within the archive
    for _ in range(2):
        place.pltz("collect", "--grace", "0s")
    place.has_all(tmp_path, versions)
    assert place.runs() >= 1
