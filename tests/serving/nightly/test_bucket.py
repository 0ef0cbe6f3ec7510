"""A night whose archive is in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pltz.serving.nightly.sources import jsonl
from tests.archive.towers import SessionArchive
from tests.serving.nightly.conftest import Nightly, chat, lines

if TYPE_CHECKING:
    from tests.archive.conftest import S3Server


@pytest.fixture
def many(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> Nightly:
    """Six shards, with a bad line in each."""
    monkeypatch.setattr(jsonl, "SHARD_BYTES", 1)
    for n in range(6):
        data = lines(chat(10 * n + k) for k in range(10)) + b"{no\n"
        nightly.write(f"chats/{n}.jsonl", data)
    return nightly


@pytest.mark.slow
def test_a_bucket(many: Nightly, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive lies in a bucket, and the state is a folder."""
    for name, value in s3.options.items():
        monkeypatch.setenv("AWS_ENDPOINT_URL" if name == "endpoint" else f"AWS_{name.upper()}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = s3.place().url
    cold = SessionArchive.create(url, many.bundles)
    many.head = many.head.replace('"cold"', f'"{url}"')
    many.rest = "[verify]\n[collect]\n"
    assert many.counts() == (60, 0, 6, 5)
    assert many.counts() == (0, 60, 6, 5)
    assert cold.get("chat-7").value == chat(7) and len(list(cold.archive.ls())) == 60
