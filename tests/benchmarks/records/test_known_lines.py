"""Known lines keep the shapes and common names of logs, and say nothing that a log says."""

import json
from pathlib import Path

import pytest
import zstandard

from pltz.benchmarks.records import known_lines
from pltz.coding.log import table
from tests.coding.log import logs


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file of logs of two repositories; one has a name of its own."""
    path = tmp_path / "logs.jsonl.zst"
    records = [
        {"id": f"{kind}/owner+{repository}/log", "kind": kind, "text": logs.LOGS[kind].decode()}
        for kind in ("claude-code", "codex", "opencode") for repository in ("one", "two")
    ]
    records[0]["text"] = records[0]["text"].replace('"name":"Read"', '"name":"Peek"')
    lines = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(zstandard.compress(lines.encode()))
    return path


def test_what_logs_say_is_replaced_and_shapes_stay(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "known.jsonl"
    known_lines.main([str(source), str(target)])
    made = target.read_text(encoding="utf-8")
    assert '"parentUuid"' in made and '"tool_result"' in made and '"token_count"' in made
    for said in ("area", "rectangle", "Peek", "/home/me", logs.name(3), logs.digits(3, 22)):
        assert said not in made


def test_the_known_lines_of_tables_are_taken_apart_whole() -> None:
    data = Path(known_lines.__file__).with_suffix(".jsonl").read_bytes()
    assert table.learn((Path(table.__file__).parent / "known.table").read_bytes())[1] == data
    assert table.learn(table.teach(data))[1] == data
    found = table.split(data)
    assert table.join(found.columns, found.opaque, found.pieces, len(data)) == data
    assert sum(len(piece.text) for piece in found.pieces) < len(data) // 50
