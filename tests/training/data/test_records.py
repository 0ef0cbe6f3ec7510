"""Sessions for training: the split, the records and the token streams (training/data/records.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pltz.datasets import sample_sessions
from pltz.models.bundle.tokenizer import BundleTokenizer
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


def test_streams_leave_out_what_no_tokens_spell(tmp_path: Path, tiny_tokenizer: BundleTokenizer) -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    given = [Session("chat", {"messages": [image]}), Session("text", b"hello"), Session("ids", [5])]
    out = records.TokenStreams(tmp_path, tiny_tokenizer)
    sessions, tokens = out.add("train", [records.record(s, "f.txt") for s in given])
    assert sessions == 1 and out.skipped == 2 and list(out.sources) == ["text:f"]
    ids = np.fromfile(tmp_path / "train.bin", np.uint16)
    assert len(ids) == tokens and tiny_tokenizer.decode(ids.astype(np.int32)) == b"hello"


def test_a_record_of_a_text_is_that_text() -> None:
    found = records.record(Session("chat", {"id": "book-7", "text": "caf\u00e9", "licence": "MIT"}), "x.jsonl")
    assert (found.source, found.licence) == ("text:book", "MIT")
    assert records.plain(found.session) == Session("text", "caf\u00e9".encode())
    assert records.texts(found.session) == ["caf\u00e9"]


@pytest.mark.filterwarnings("ignore::pltz.datasets.loaders.InputWarning")
def test_each_line_of_a_text_is_a_record_and_a_document_is_one(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    lines = [json.dumps(value) for value in ({"id": "a-1", "text": "one"}, {"id": "a-2", "text": "two"}, chat)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"x": NaN}', '{"id": "a-3", "text": "three"}', ""]))
    (tmp_path / "b.json").write_text('{"x":\nNaN}')
    found = [records.plain(session).to_bytes() for session in records.load(str(tmp_path))]
    assert found == [b"one", b"two", Session("chat", chat).to_bytes(), b'{"x": NaN}', b"three", b'{"x":\nNaN}']
