"""Golden tables give their logs, and the logs the same tables."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pltz.coding.log import table
from pltz.coding.log.above import Above
from pltz.coding.log.splitter import Splitter
from pltz.coding.log.table import Table, TextPiece
from pltz.plt_codec.errors import VersionError
from tests.loaded import module_at

SHIPPED = True

FOLDER = Path(__file__).parents[2] / "golden" / "tables"
ROWS: list[dict[str, Any]] = json.loads((FOLDER / f"version-{table.VERSION}.json").read_text(encoding="utf-8"))


def maker() -> ModuleType:
    """make.py beside the files."""
    return module_at(FOLDER / "make.py")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['name']}-{row['part']}")
def test_golden_tables_join_and_split_again(row: dict[str, Any]) -> None:
    data, above = maker().parts(row["name"])[row["part"]]
    pieces = [TextPiece(*piece) for piece in row["pieces"]]
    known = Table(bytes.fromhex(row["columns"]), bytes.fromhex(row["opaque"]), pieces)
    assert table.join(known.columns, known.opaque, known.pieces, row["count"], above) == data
    assert table.split(data, above) == known


@pytest.mark.parametrize("name", sorted({row["name"] for row in ROWS}))
def test_a_reader_of_golden_tables_splits_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Splitter, "content", lambda *_: pytest.fail("a reader split a log"))
    whole, *thirds = [row for row in ROWS if row["name"] == name]
    up, found = None, b""
    for row in thirds:
        text = table.text_of(text for _, text in row["pieces"])
        up = Above.made_of(bytes.fromhex(row["columns"]), bytes.fromhex(row["opaque"]), text, row["count"], up)
        found += table.content_of(up)
    assert len(thirds) == 3 and found == maker().parts(name)[whole["part"]][0]


@pytest.mark.parametrize("version", [0, table.VERSION - 1, table.VERSION + 1, 255])
def test_tables_of_other_versions_are_refused(version: int) -> None:
    row = ROWS[0]
    columns = bytes([version]) + bytes.fromhex(row["columns"])[1:]
    with pytest.raises(VersionError, match=rf"version {version}, .*this pltz reads {table.VERSION}:"):
        table.join(columns, bytes.fromhex(row["opaque"]), [piece[1] for piece in row["pieces"]], row["count"])
