"""`pltz.api.open_archive`: archives in directories and buckets, open ones and sealed ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pltz import api
from pltz.archive.errors import KeyMismatch
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.weights import random_weights
from tests.archive.conftest import S3Server


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[..., bytes]) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    write_bundle(folder, "tiny", random_weights(5, vocab=1024, block=128), tiny_tokenizer_json(1024), b"", {})
    return Bundle.load(folder)


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "directory":
        return str(tmp_path / "cold")
    server: S3Server = request.getfixturevalue("s3")
    for name, value in server.options.items():
        monkeypatch.setenv("AWS_ENDPOINT_URL" if name == "endpoint" else f"AWS_{name.upper()}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"s3://{server.bucket}/{tmp_path.name}"


@pytest.mark.parametrize("sealed", [False, True])
def test_made_and_opened_again(place: str, tmp_path: Path, bundle: Bundle, sealed: bool) -> None:
    """archive.json was looked for as a local file, and no key could be given."""
    (tmp_path / "key").write_bytes(b"a key of 16 bytes or more")
    key = tmp_path / "key" if sealed else None
    cold = api.open_archive(place, create=True, bundle=bundle, key_file=key)
    list(cold.put([api.item("greeting", "hello")]))
    for create in (True, False):
        again = api.open_archive(place, create=create, bundle=bundle, key_file=key)
        assert again.get("greeting").value == b"hello"
        assert again.archive.settings == cold.archive.settings and again.archive.settings.sealed == sealed


def test_nothing_is_made_unasked(place: str, bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="no archive"):
        api.open_archive(place, bundle=bundle)


def test_keys(tmp_path: Path, bundle: Bundle) -> None:
    place, key = tmp_path / "cold", tmp_path / "key"
    key.write_bytes(b"a key of 16 bytes or more")
    api.open_archive(place, create=True, bundle=bundle, key_file=key)
    assert api.open_archive(place, bundle=bundle, key_command=f"cat {key}").archive.settings.sealed
    with pytest.raises(KeyMismatch):
        api.open_archive(place, bundle=bundle, passphrase="words")
    with pytest.raises(KeyMismatch, match="sealed"):
        list(api.open_archive(place, bundle=bundle).put([api.item("a", "b")]))
    with pytest.raises(UsageError, match="one of key_file"):
        api.open_archive(place, bundle=bundle, key_file=key, passphrase="words")
    with pytest.raises(UsageError, match="not sealed"):
        api.open_archive(tmp_path / "open", create=True, bundle=bundle)
        api.open_archive(tmp_path / "open", bundle=bundle, key_file=key)
