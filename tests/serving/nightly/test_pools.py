"""Processes and Ray freeze the same shards to the same archive as one process does."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pltz.plt_codec.errors import UsageError
from pltz.serving.nightly import config, job
from pltz.serving.nightly.sources import jsonl
from tests.archive.towers import SessionArchive

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.archive.conftest import S3Server
    from tests.serving.nightly.conftest import Nightly

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@pytest.fixture
def many(
    nightly: Nightly,
    make_chat: Callable[..., dict[str, Any]],
    make_lines: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Nightly:
    """Six shards, with a bad line in each."""
    monkeypatch.setattr(jsonl, "SHARD_BYTES", 1)
    for n in range(6):
        data = make_lines(make_chat(10 * n + k) for k in range(10)) + b"{no\n"
        nightly.write(f"chats/{n}.jsonl", data)
    return nightly


def check(many: Nightly, wanted: Any) -> None:
    assert many.counts() == (0, 60, 6, 5)
    assert many.content() == wanted and len(wanted) == 60
    assert len(list((many.root / "state/receipts").iterdir())) == 1
    assert not list((many.root / "state/pending").iterdir())


def test_two_processes(many: Nightly, make_chat: Callable[..., dict[str, Any]]) -> None:
    import json

    many.head += "workers = 2\n"
    tallies: list[Any] = []
    assert many.counts(seen=tallies.append) == (60, 0, 6, 5)
    assert len(tallies) >= 6
    check(many, {("default", f"chat-{n}"): [json.dumps(make_chat(n))] for n in range(60)})


@pytest.mark.slow
def test_a_bucket(
    many: Nightly,
    make_chat: Callable[..., dict[str, Any]],
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The archive lies in a bucket, two processes write, and the state is a folder."""
    for name, value in s3.options.items():
        monkeypatch.setenv("AWS_ENDPOINT_URL" if name == "endpoint" else f"AWS_{name.upper()}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = s3.place().url
    cold = SessionArchive.create(url, many.bundles)
    many.head = many.head.replace('"cold"', f'"{url}"') + "workers = 2\n"
    many.rest = "[verify]\n[collect]\n"
    assert many.counts() == (60, 0, 6, 5)
    assert many.counts() == (0, 60, 6, 5)
    assert cold.get("chat-7").value == make_chat(7) and len(list(cold.archive.ls())) == 60


@pytest.mark.slow
@pytest.mark.ray
@needs_ray
def test_a_real_ray_on_this_machine(
    many: Nightly, make_chat: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    import ray

    roots = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(filter(None, roots))}},
    )
    try:
        many.head += "workers = 2\n"
        killed: list[int] = []

        def kill_one(tally: Any) -> None:
            """An actor dies in the middle: Ray starts it again."""
            for actor in [] if killed else actors():
                os.kill(actor, signal.SIGKILL)
                killed.append(actor)
                break

        report = job.run(config.load(many.file), how="ray", seen=kill_one)
        assert killed
        assert report["exit_code"] == 5 and report["totals"]["seen"] == 66, report["failures"]
        check(many, {("default", f"chat-{n}"): [json.dumps(make_chat(n))] for n in range(60)})
        assert job.run(config.load(many.file), how="ray")["totals"]["known"] == 60
    finally:
        ray.shutdown()


def actors() -> list[int]:
    """Processes of Ray actors that freeze."""
    found = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if status.read_bytes().startswith(b"ray::Freezer"):
                found.append(int(status.parent.name))
        except OSError:
            continue
    return found


def test_without_ray_it_is_said(many: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"pltz\[ray\]"):
        job.run(config.load(many.file), how="ray")
    assert not (many.root / "state").exists()
