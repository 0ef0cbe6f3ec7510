"""bench codec: the right sessions are measured, and the figures add up."""

import json
from pathlib import Path
from typing import Any

from pltz.cli.bench.codec import compressors as peers, corpus
from tests.cli.commands import Run, ok


def chat(*contents: str) -> list[dict[str, str]]:
    return [{"role": ["user", "assistant"][i % 2], "content": text} for i, text in enumerate(contents)]


def write(path: Path, records: list[tuple[str, str]]) -> Path:
    lines = [json.dumps({"id": name, "licence": "x", "messages": chat(text)}) for name, text in records]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_selection_is_by_source_in_order_and_skips_what_is_too_long(tmp_path: Path) -> None:
    records = [("b-1", "x" * 6), ("a-b-1", "x" * 3), ("b-2", "x" * 5), ("b-3", "x" * 4), ("a-b-2", "x" * 11)]
    chosen = corpus.select(corpus.read(str(write(tmp_path / "r.jsonl", records))), 10)
    assert [(r.source, r.content_bytes) for r in chosen] == [("a-b", 3), ("b", 6), ("b", 4)]
    assert all(list(r.session.value) == ["messages"] for r in chosen)


def test_the_lean_rendering_can_be_read_back() -> None:
    assert peers.lean(chat("hi", "hello")) == b"\x02hi\x03hello"
    awkward: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": "a control \x02 byte"}], [{"role": "user", "content": "x", "name": "n"}],
        [{"content": "x", "role": "user"}], [{"role": "user", "content": None}], [{"role": "critic", "content": "x"}],
    ]
    for messages in awkward:
        assert json.loads(peers.lean(messages)) == messages


def test_figures_add_up(run: Run, tiny: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "r.jsonl", [("b-1", "one two three " * 9), ("a-1", "x"), ("b-2", "four")])
    done = ok(run("bench", "codec", "--data", data, "--limit-bytes", 200))
    *table, last = done.stdout.splitlines()
    found = json.loads(last)
    assert [source["source"] for source in found["sources"]] == ["a", "b"] and found["total"]["sessions"] == 3
    for key in ("content_bytes", "tokens"):
        assert sum(source[key] for source in found["sources"]) == found["total"][key]
    assert round(sum(source["pltz_bytes"] for source in found["sources"])) == found["file_bytes"]
    assert round(found["total"]["pltz_bytes"]) == found["file_bytes"]
    for name in found["peers"]:
        parts = [source["peer_bytes"][name] for source in found["sources"]]
        assert sum(parts) == found["total"]["peer_bytes"][name] == min(found["peers"][name]["totals"].values())
    best = found["total"]["best_peer"]
    assert found["total"]["peer_bytes"][best] == min(found["total"]["peer_bytes"].values())
    assert found["machine"]["engine"] and found["machine"]["versions"]["zstandard"] and found["encode_tokens_per_s"] > 0
    assert any("total" in line and "kB" not in line for line in table)
