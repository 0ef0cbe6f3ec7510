"""The connector's settings on a fake vLLM: names and types are checked, sealed archives open, refusals are shown."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pltz.archive.encryption.keys import Secret
from pltz.archive.errors import KeyMismatch
from pltz.archive.storage.disk import OsDisk
from pltz.models.target.checkpoint import resolve
from pltz.plt_codec.errors import UsageError
from pltz.serving.engines.vllm_settings import VllmSettings
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook
from pltz.serving.eviction.journal.lock import FileLocks
from pltz.serving.eviction.journal.reader import JournalReader
from pltz.serving.eviction.worker import drain
from tests.archive.towers import SessionArchive
from tests.serving.engines import fake_vllm
from tests.serving.engines.test_vllm import IDS, request
from tests.serving.eviction.opened import eventually, worker_in_thread

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"unnamed": "false"}, "unnamed as true or false, found 'false', a str"),
    ({"journal": 5}, "journal as a string"),
    ({"tenant": "a#salt=00"}, "tenant"),
    ({"tenant": "x" * 2000}, "tenant"),
    ({"target": "abc"}, "32 hex digits"),
    ({"key_file": "k"}, "key_file opens an archive, and none is named"),
    ({"key_file": "k", "key_command": "c", "archive": "a"}, "key_file and key_command"),
    ({"flush_seconds": "0.1"}, "flush_seconds as a number"),
    ({"flush_seconds": float("nan")}, "flush_seconds"),
    ({"journal_bytes": 1.5}, "journal_bytes as a whole number"),
    ({"nice": True}, "nice as a whole number"),
    ({"layout": ["fast"]}, "layout"),
    ({"jounal": "j"}, "found 'jounal'"),
    ({"key": "secret"}, "found 'key'"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_a_wrong_setting_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        VllmSettings.parse({"journal": "j", **given})
    assert words in str(refused.value) and "kv_connector_extra_config" in str(refused.value)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake_vllm.install(monkeypatch)


Connect = Callable[..., Any]


@pytest.fixture
def connect(module: Any) -> Iterator[Connect]:
    """Return ``connect(journal=...)``, which makes the connector's scheduler half. It is shut down at the end."""
    made: list[Any] = []

    def one(**settings: Any) -> Any:
        config = fake_vllm.config(str(resolve("mini-llama")), target="", **settings)
        made.append(module.PltzConnector(config, fake_vllm.Role.SCHEDULER, None))
        return made[-1]

    yield one
    for connector in made:
        connector.shutdown()


def named(session: Any, **own: Any) -> Any:
    return request(kv_transfer_params={"pltz": {"session": session, **own}})


def test_what_the_connector_cannot_archive_is_counted_and_named(
    connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connector = connect(journal=str(tmp_path), flush_seconds=0.005)
    broken = SimpleNamespace(request_id="cmpl-9", kv_transfer_params={"pltz": {"session": "odd"}})
    bad = (named("n" * 3000), named("forged", tenant="acme#salt=" + "0" * 32), broken)
    with caplog.at_level(logging.WARNING, "pltz.hook"):
        for one in (*bad, named("good")):
            assert connector.request_finished_all_groups(one, ()) == (False, None)
        assert eventually(lambda: len(caplog.records) == 3) and connector._hook.flush(60)
    refused = {"name too long": 1, "not valid": 1, "error": 1}
    assert connector._hook.status()["refused"] == refused
    for words in ("nnn... of 3000 characters", "'forged' of tenant 'acme#salt=", "'odd'"):
        assert words in caplog.text
    assert connector._hook.status()["durable"] == 1


@pytest.mark.parametrize("given", ["key_file", "key_command", "passphrase_env"])
def test_the_connector_opens_a_sealed_archive(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "key").write_bytes(b"a key of sixteen bytes or more")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("COLD_PASSPHRASE", "correct horse")
    setting = {"key_file": str(tmp_path / "key"), "key_command": f"cat {tmp_path / 'key'}"}
    setting["passphrase_env"] = "COLD_PASSPHRASE"
    words = given == "passphrase_env"
    key = Secret.passphrase("correct horse") if words else Secret.file(tmp_path / "key")
    SessionArchive.open(tmp_path / "cold", key=key, create=True)
    places = {"journal": str(tmp_path / "journal"), "archive": str(tmp_path / "cold")}
    with pytest.raises(KeyMismatch, match="key_file, key_command or passphrase_env"):
        connect(**places)
    with worker_in_thread():
        connector = connect(**places, flush_seconds=0.005, **{given: setting[given]})
    connector.request_finished_all_groups(named("chat"), ())
    assert connector._hook.settle(60)
    assert SessionArchive.open(tmp_path / "cold", key=key).get_ids("chat").ids.tolist() == IDS


def test_a_passphrase_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLD_PASSPHRASE", raising=False)
    settings = VllmSettings.parse({"journal": "j", "archive": "a", "passphrase_env": "COLD_PASSPHRASE"})
    with pytest.raises(UsageError, match="environment variable COLD_PASSPHRASE"):
        settings.secret()


def test_a_sealed_archive_without_its_key_is_refused_at_open(tmp_path: Path) -> None:
    """Refuse a sealed archive without its key: it opened, nothing was archived, and the journal grew."""
    key = Secret(b"a key of sixteen bytes or more", 0)
    SessionArchive.open(tmp_path / "cold", key=key, create=True)
    with pytest.raises(KeyMismatch, match="key_file, key_command or passphrase_env"):
        EvictionHook.open(tmp_path / "journal", tmp_path / "cold")
    assert JournalReader(OsDisk(tmp_path / "journal"), FileLocks(tmp_path / "journal")).status().living == 0
    with pytest.raises(KeyMismatch):
        EvictionHook.open(tmp_path / "journal", tmp_path / "cold", key=Secret(b"another" * 4, 0))
    with pytest.raises(UsageError, match="none is named"):
        EvictionHook.open(tmp_path / "journal", key=key)
    with EvictionHook.open(tmp_path / "journal") as hook:
        assert hook.on_evict(EvictionRequest("chat", IDS)) and hook.flush(60)
    with pytest.raises(KeyMismatch, match="--key-file"):
        drain(tmp_path / "journal", tmp_path / "cold")
    assert drain(tmp_path / "journal", tmp_path / "cold", key=key).stored == 1
