"""Pieces of held-out texts are of one length and of the projects' own text, and translations are not English."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pltz.benchmarks.sizes import held_out_texts
from pltz.benchmarks.sizes.held_out_texts import LENGTH, TextSource
from tests.benchmarks.records.test_repository_text import clone


def lines(words: str, count: int) -> str:
    return "".join(f"{words}, and this is number {n:04}\n" for n in range(count))


def test_pieces_are_cut_from_files_that_are_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    english, italian = lines("a line of the English page", 200), lines("una riga della pagina italiana", 200)
    docs = clone(tmp_path / "a/docs", {"src/one.md": english, "other.md": lines("not a page", 200)})
    there = clone(tmp_path / "a/docs-it", {"src/one.md": italian, "src/two.md": english, "src/small.md": "breve"})
    code = clone(tmp_path / "a/code", {"a.c": lines("int own;", 200), "vendor/b.c": lines("int others;", 200)})
    monkeypatch.setattr(
        held_out_texts,
        "SOURCES",
        (
            TextSource("lang-it", "a/docs-it", there, "src/", ".md", 9),
            TextSource("rag-docs", "a/docs", docs, "src/", ".md", 1),
            TextSource("code-c", "a/code", code, "", ".c .h", 9),
        ),
    )
    target = tmp_path / "held.jsonl"
    done = CliRunner().invoke(held_out_texts.main, [str(tmp_path), str(target)], catch_exceptions=False)
    found: dict[str, list[str]] = {}
    for line in target.read_text("utf8").splitlines():
        record = json.loads(line)
        found.setdefault(record["id"].rsplit("-", 1)[0], []).append(record["text"])
    assert json.loads(done.stdout) == {name: len(texts) for name, texts in found.items()}
    assert {len(text) for texts in found.values() for text in texts} == {LENGTH}
    assert 1 <= len(found["lang-it"]) <= 2 and all(text in italian for text in found["lang-it"])
    assert len(found["rag-docs"]) == 1 and found["rag-docs"][0] in english
    assert all("others" not in text for text in found["code-c"])
