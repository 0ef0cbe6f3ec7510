"""Errors about a missing bundle name it, and the command that brings it."""

import json
from pathlib import Path

import pytest

from pltz.models.bundle import locations
from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.locations import RELEASES, described, how_to_get
from pltz.plt_codec.errors import BundleMismatch, UsageError


def test_every_bundle_of_this_repository_is_a_release() -> None:
    heads = [json.loads(path.read_text()) for path in Path(locations.EMBEDDED).glob("*/bundle.json")]
    assert {bytes.fromhex(head["id"]): head["name"] for head in heads} == {one: name for one, name, _ in RELEASES}


def test_a_missing_release_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = next(one for one, name, _ in RELEASES if name == "base")
    monkeypatch.setattr(locations, "EMBEDDED", tmp_path)
    with pytest.raises(BundleMismatch, match=r"base \(be93.*`pip install pltz-base`"):
        Bundle.find(base)
    with pytest.raises(UsageError, match="install it with `pip install pltz-base`"):
        Bundle.load("base")


def test_a_bundle_of_others_is_named_by_its_id(tmp_path: Path) -> None:
    assert described(bytes(16)) == "00" * 16 and "pltz bundle add FOLDER" in how_to_get(bytes(16))
    with pytest.raises(BundleMismatch, match="pltz bundle add FOLDER"):
        Bundle.find(bytes(16))
