"""Sessions for training: the split, the records and the token streams (training/data/records.py)."""

import json
from pathlib import Path

import pytest

from pltz.datasets import sample_sessions
from pltz.models.session.session import Session
from pltz.training.data import records


def test_the_split_is_by_content_and_keeps_copies_together() -> None:
    sessions = sample_sessions()
    parts = [records.part_of(s, 0.2) for s in sessions]
    assert parts == [records.part_of(Session("chat", s.value), 0.2) for s in sessions]
    assert 0.1 < 1 - parts.count("train") / len(parts) < 0.3 and {"test", "validation"} < set(parts)
    wider = [records.part_of(s, 0.4) for s in sessions]
    assert all(w != "train" for w, p in zip(wider, parts, strict=True) if p != "train")


def test_records_come_back(tmp_path: Path) -> None:
    found = [
        records.LabelledSession("a", Session("chat", {"messages": [{"role": "user", "content": "h\ud800"}]}), "MIT"),
        records.LabelledSession("text:b", Session("text", b"\xff\n\x00"), ""),
        records.LabelledSession("c", Session("ids", [1, 2, 1 << 30]), ""),
    ]
    with records.keeper(tmp_path / "r.zst") as keep:
        for one in found:
            keep(one)
    back = list(records.read(tmp_path / "r.zst"))
    assert [(r.source, r.licence) for r in back] == [(r.source, r.licence) for r in found]
    assert all(a.session.difference(b.session) is None for a, b in zip(found, back, strict=True))


@pytest.mark.filterwarnings("ignore::pltz.datasets.loaders.InputWarning")
def test_each_line_of_a_text_is_a_record_and_a_document_is_one(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    lines = [json.dumps(value) for value in ({"id": "a-1", "text": "one"}, {"id": "a-2", "text": "two"}, chat)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"x": NaN}', '{"id": "a-3", "text": "three"}', ""]))
    (tmp_path / "b.json").write_text('{"x":\nNaN}')
    found = [records.plain(session).to_bytes() for session in records.load(str(tmp_path))]
    assert found == [b"one", b"two", Session("chat", chat).to_bytes(), b'{"x": NaN}', b"three", b'{"x":\nNaN}']
