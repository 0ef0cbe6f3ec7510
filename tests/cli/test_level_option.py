"""``--level`` of compress and archive put: what each level codes with, and the options that it excludes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pltz import api
from pltz.archive.archive import Archive
from pltz.benchmarks.random_weights import random_weights
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.plt_codec.container.file import Reader
from tests.cli.commands import Run


@pytest.fixture
def nano(tiny: Path, tmp_path: Path, tiny_tokenizer_json: Callable[..., bytes]) -> bytes:
    """Add a tiny untrained bundle ``nano`` beside the tiny ``mini``, and return its id."""
    weights = random_weights(2, vocab=1024, d=32, layers=1, heads=2, kv_heads=1, hidden=32)
    write_bundle(tmp_path / "user-bundles/nano", "nano", weights, tiny_tokenizer_json(), b"words", {"licence": "none"})
    return Bundle.load("nano").id


def heard(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> dict[str, Any]:
    """Return a dictionary that will hold the keywords of the last call of a function, which still does its work."""
    called, found = getattr(place, name), dict[str, Any]()

    def spy(*args: Any, **keywords: Any) -> Any:
        found.update(keywords)
        return called(*args, **keywords)

    monkeypatch.setattr(place, name, spy)
    return found


WAYS = [(1, "nano", "fast", False), (3, "nano", "default", True), (5, "mini", "default", False)]


@pytest.mark.parametrize(("level", "bundle", "layout", "near"), WAYS)
def test_a_file_is_coded_as_its_level_says(
    run: Run, nano: bytes, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    level: int, bundle: str, layout: str, near: bool,
) -> None:  # fmt: skip
    how = heard(monkeypatch, api, "compress")
    assert run("compress", chats, "-o", tmp_path / "a.pltz", "--level", level).exit_code == 0
    assert Reader((tmp_path / "a.pltz").read_bytes()).header.bundle_id == Bundle.load(bundle).id
    assert (how["layout"], how["independent"]) == (layout, not near)
    assert run("decompress", tmp_path / "a.pltz", "-o", tmp_path / "back.jsonl").exit_code == 0
    back = (tmp_path / "back.jsonl").read_text("utf8").splitlines()
    assert [json.loads(line) for line in back] == [json.loads(line) for line in chats.read_text("utf8").splitlines()]


PUTS = [(None, None, None, False), (0, None, None, False), (2, None, None, False), (6, None, None, True), *WAYS]


@pytest.mark.parametrize(("level", "bundle", "layout", "by_model"), PUTS)
def test_an_archive_is_put_into_as_the_level_says(
    run: Run, nano: bytes, cold: Path, chats: Path, monkeypatch: pytest.MonkeyPatch,
    level: int | None, bundle: str | None, layout: str | None, by_model: bool,
) -> None:  # fmt: skip
    how = heard(monkeypatch, Archive, "open")
    assert run("archive", "put", "-r", cold, chats, *([] if level is None else ["--level", level])).exit_code == 0
    assert how["model_logs"] is by_model and how["model_ids"] is (None if level is None else level != 0)
    assert bundle is None or (how["bundle"], how["layout"]) == (bundle, layout)


def test_level_0_is_of_no_file(run: Run, chats: Path, tmp_path: Path) -> None:
    done = run("compress", chats, "-o", tmp_path / "a.pltz", "--level", 0)
    assert done.exit_code == 2 and "levels 1 to 7" in done.stderr


def test_a_level_without_its_bundle_is_refused(run: Run, tiny: Path, cold: Path, chats: Path, tmp_path: Path) -> None:
    for words in (["compress", chats, "-o", tmp_path / "a.pltz"], ["archive", "put", "-r", cold, chats]):
        done = run(*words, "--level", 7)
        assert done.exit_code == 2 and "pip install pltz-base" in done.stderr
