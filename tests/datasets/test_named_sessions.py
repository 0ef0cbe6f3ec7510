"""Names of the sessions of files: the same whichever folder was given."""

import json
from pathlib import Path

import pytest
import zstandard

from pltz.datasets.input_format import ReadOptions
from pltz.datasets.loaders import recognise
from pltz.datasets.named_sessions import named
from tests.files import write_files


def log(session: str, events: int = 2) -> bytes:
    messages = ({"role": "user", "content": str(n)} for n in range(events))
    rows = ({"type": "user", "sessionId": session, "message": message} for message in messages)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def rollout(events: int = 2) -> bytes:
    rows = [{"type": "session_meta", "payload": {"id": "019fdbfa"}}, *({"type": "event_msg", "payload": {}},) * events]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def names(given: Path) -> list[tuple[str, str]]:
    found = recognise(given, ReadOptions(parts=True, warn=lambda _: None))
    return [(one.name, one.found.part) for one in named(found, str(given))]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    project = tmp_path / ".claude/projects/-home-me-shop"
    files = {
        "4f35.jsonl": log("4f35"), "4f35/subagents/agent-a.jsonl": log("4f35"),
        "4f35/subagents/agent-a.meta.json": b'{"agentType":"explore"}', "4f35/tool-results/out.txt": b"rows\n",
        "memory/MEMORY.md": b"- tea\n",
    }
    write_files(project, files)
    return tmp_path


def test_a_session_has_its_name_and_parts_whichever_folder_is_given(home: Path) -> None:
    shop, project = "./-home-me-shop/4f35", home / ".claude/projects/-home-me-shop"
    subagents = [(shop, "subagents/agent-a.jsonl"), (shop, "subagents/agent-a.meta.json")]
    parts = [*subagents, (shop, "tool-results/out.txt")]
    for given in (home, home / ".claude", project.parent, project):
        assert names(given) == [(shop, ""), *parts, ("./-home-me-shop/memory/MEMORY/0", "")], given
    assert names(project / "4f35") == parts and names(project / "4f35/subagents") == subagents
    assert names(project / "4f35/subagents/agent-a.jsonl") == subagents[:1]
    assert names(project / "4f35.jsonl") == [(shop, "")]


def test_a_rollout_has_one_name_live_archived_and_packed(tmp_path: Path) -> None:
    stem = "rollout-2026-08-01T10-00-00-019fdbfa-0000-7000-8000-000000000001"
    day, archived = tmp_path / "sessions/2026/08/01", tmp_path / "archived_sessions"
    for folder in (day, archived):
        folder.mkdir(parents=True)
        (folder / f"{stem}.jsonl").write_bytes(rollout())
    (day / f"{stem}.jsonl.zst").write_bytes(zstandard.compress(rollout(3)))
    name = (f"2026/08/01/{stem}", "")
    assert names(tmp_path) == [name] * 3 and names(day) == [name] * 2
    assert names(archived) == names(archived / f"{stem}.jsonl") == names(day / f"{stem}.jsonl.zst") == [name]


def test_zstd_in_frames_is_read_under_any_name_and_kept_up_to_a_cut(tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    frames = [compressor.compress(log("a", 3)), b"\x50\x2a\x4d\x18\4\0\0\0skip", compressor.compress(log("b", 400))]
    whole, told = b"".join(frames), list[str]()
    files = {"z.jsonl.zstd": whole, "y.jsonl": whole, "x": frames[1] + frames[0], "t.zstd": whole[:-9]}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found = {Path(one.file).name: one for one in recognise(tmp_path, ReadOptions(warn=told.append))}
    full = log("a", 3) + log("b", 400)
    assert {name: one.session.value for name, one in found.items() if name != "t.zstd"} == {
        "z.jsonl.zstd": full, "y.jsonl": full, "x": log("a", 3)
    }  # fmt: skip
    assert full.startswith(found["t.zstd"].session.value) and found["t.zstd"].session.value.startswith(log("a", 3))
    [why] = told
    assert "t.zstd: the zstd data stops in the middle of a frame, what is before that is kept" in why
    (tmp_path / "t.zstd").write_bytes(frames[0][:-9])  # no whole frame
    refused: list[str] = []
    list(recognise(tmp_path, ReadOptions(refused=lambda why, file: refused.append(file.inside))))
    assert refused == ["t.zstd"]
