"""Commands with --ray report what they do on one machine, go on where they were, and survive the death of a worker."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pltz.archive.format.object_names import BULK
from pltz.archive.maintenance import bulk_ray
from pltz.archive.maintenance.bulk_lease import BulkLease
from pltz.archive.maintenance.bulk_shards import OneProcess
from pltz.archive.maintenance.collect import Collector
from pltz.archive.maintenance.live_set import LiveSet
from pltz.archive.maintenance.verify import Verifier
from pltz.archive.storage.places import open_store
from pltz.plt_codec.errors import UsageError
from tests.cli.archive.test_verify import flip
from tests.cli.commands import Run, chat

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: Path) -> None:
    """Let --ray do its shards in this process."""
    monkeypatch.setattr(bulk_ray, "cluster", lambda address: nullcontext())
    monkeypatch.setattr(bulk_ray, "RayWorkers", lambda ray: OneProcess())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Make a folder of twelve files, of which one is no session."""
    folder = tmp_path / "history"
    folder.mkdir()
    for n in range(12):
        rows = [chat(1 + (n + k) % 8, number=10 * n + k) for k in range(3)]
        (folder / f"{n}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "12.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}))
    return folder


def said(run: Run, *words: object) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the rows that a command prints, without tokens and sizes that differ per put."""
    done = run("archive", *words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return done.exit_code, [{k: v for k, v in row.items() if k != "token"} for row in rows]


def listed(run: Run, place: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return what `ls` says of all versions, without their age, which is one more in the next second."""
    code, rows = said(run, "ls", place, "--history", "--json")
    return code, [{**row, "age": 0} for row in rows]


def same(run: Run, logs: Path, tmp_path: Path, *more: object, each: slice = slice(None)) -> None:
    """Do all commands on one machine and with --ray, and compare what they say.

    ``each``: the part of the options of each command that is tried.
    """
    cold, there = tmp_path / "cold", tmp_path / "there"
    words: tuple[str, ...]

    def tried(*options: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        return options[each]

    for place in (cold, there):
        assert run("archive", "init", place).exit_code == 0
    # an import: the same receipts, but for segments that two shards store both
    want, found = (
        said(run, "put", place, logs, "--time", 7, "--commit-seconds", 1000, "--json", *more, *ray)
        for place, ray in ((cold, ()), (there, ("--ray",)))
    )
    loose = ("segments", "known", "new", "bytes")
    assert want[0] == found[0] == 5 and len(want[1]) == 36
    assert [{k: v for k, v in row.items() if k not in loose} for row in want[1]] == [
        {k: v for k, v in row.items() if k not in loose} for row in found[1]
    ]
    assert listed(run, cold) == listed(run, there)
    # verify, sound
    for words in tried((), ("--decode",)):
        want, found = (said(run, "verify", cold, "--json", *words, *more, *ray) for ray in ((), ("--ray",)))
        assert want == found and want[0] == 0 and want[1][-1]["sound"]
    # export, whole and in part
    for words in tried(("--with-names",), ("--tenant", "default")):
        files = [tmp_path / "one", tmp_path / "spread"]
        for file, ray in zip(files, ((), ("--ray",)), strict=True):
            assert run("archive", "export", cold, "-o", file, "--force", *words, *more, *ray).exit_code == 0
        assert files[0].read_bytes() == files[1].read_bytes() and files[0].read_bytes().count(b"\n") == 36
    # copy, and again
    others = [tmp_path / "one-copy", tmp_path / "spread-copy"]
    for other in others:
        run("archive", "init", other)
    for words in tried(("--dry-run",), (), ()):
        want, found = (
            said(run, "copy", cold, other, "--json", *words, *more, *ray)
            for other, ray in zip(others, ((), ("--ray",)), strict=True)
        )
        want, found = ((code, [{**row, "bytes": 0} for row in rows]) for code, rows in (want, found))
        assert want[0] == found[0] == 0
        assert sorted(want[1], key=lambda row: row["id"]) == sorted(found[1], key=lambda row: row["id"])
    assert listed(run, others[1]) == listed(run, cold)
    # collect, of the archive and of a copy of its files: condemn, free, and once more
    run("archive", "forget", cold, "--keep-last", 1, "--json")
    there = tmp_path / "collected"
    shutil.copytree(cold, there)
    for words in tried(("--dry-run",), (), (), ()):
        want, found = (
            said(run, "collect", place, "--grace", "0s", "--json", *words, *ray)
            for place, ray in ((cold, ()), (there, ("--ray",)))
        )
        assert want[0] == found[0] == 0
        assert [{**row, "freed": 0} for row in want[1]] == [{**row, "freed": 0} for row in found[1]]
    assert listed(run, there) == listed(run, cold)
    assert said(run, "verify", there, "--decode", "--json", *more)[0] == 0
    # merge
    for words in tried(("--dry-run",), ()):
        want, found = (
            said(run, "merge", place, "--cold", "0s", "--json", *words, *more, *ray)
            for place, ray in ((cold, ()), (there, ("--ray",)))
        )
        assert want == found and want[1][0]["sessions"] == 36
    # verify, damaged
    flip(min((cold / "packs").iterdir()))
    for words in tried((), ("--decode",)):
        want, found = (said(run, "verify", cold, "--json", *words, *more, *ray) for ray in ((), ("--ray",)))
        assert want == found and want[0] == 3
    # repair, of the archive and of a copy of its files, without archive.json
    twin = tmp_path / "twin"
    shutil.copytree(cold, twin)
    next(iter((cold / "parity").glob("?" * 32))).unlink()
    next(iter((twin / "parity").glob("?" * 32))).unlink()
    for place in (cold, twin):
        (place / "archive.json").unlink()
    for words in tried(("--dry-run",), (), ()):
        want, found = (
            said(run, "repair", place, "--json", *words, *ray) for place, ray in ((cold, ()), (twin, ("--ray",)))
        )
        assert want == found
    assert listed(run, twin) == listed(run, cold)
    assert said(run, "verify", twin, "--json", *more) == said(run, "verify", cold, "--json", *more)


@pytest.mark.usefixtures("here")
def test_the_same_report(run: Run, logs: Path, tmp_path: Path) -> None:
    same(run, logs, tmp_path, "--bundle", "mini")
    assert not [file for file in (tmp_path / "state").rglob("*") if file.parent.name == "shards"]


@pytest.mark.usefixtures("here")
def test_verify_goes_on_with_what_is_left(
    run: Run, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = tmp_path / "cold"
    run("archive", "init", cold)
    for file in sorted(logs.iterdir())[:6]:
        run("archive", "put", cold, file)
    whole, seen = Verifier.check, list[bytes]()

    def two(self: Verifier, packs: Any, decode: bool) -> Any:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.extend(packs)
        return whole(self, packs, decode)

    want = said(run, "verify", cold, "--json")
    monkeypatch.setattr(Verifier, "check", two)
    assert run("archive", "verify", cold, "--ray").exit_code == 1 and len(seen) == 2

    def others(self: Verifier, packs: Any, decode: bool) -> Any:
        seen.extend(packs)
        return whole(self, packs, decode)

    monkeypatch.setattr(Verifier, "check", others)
    assert said(run, "verify", cold, "--json", "--ray") == want
    assert len(seen) == len(set(seen)) == len(list((cold / "packs").iterdir()))
    # finished once more, everything is read anew
    assert said(run, "verify", cold, "--json", "--ray") == want and len(seen) == 2 * len(set(seen))


@pytest.mark.usefixtures("here")
def test_collect_goes_on_and_reads_again_what_a_deletion_relies_on(
    run: Run, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, files = tmp_path / "cold", sorted(logs.iterdir())
    run("archive", "init", cold)
    for file in files[:4]:
        run("archive", "put", cold, file)
    assert said(run, "collect", cold, "--json")[1][0]["condemned"] == 4
    again = tmp_path / "again.jsonl"
    again.write_text(files[0].read_text())
    assert run("archive", "put", cold, again).exit_code == 0  # what condemned packs have, in one that stays
    read, whole = Counter[bytes](), Collector._read

    def but_the_last(self: Collector, pack: bytes, census: LiveSet) -> None:
        if read.total() == 3:
            raise KeyboardInterrupt
        read[pack] += 1
        whole(self, pack, census)

    monkeypatch.setattr(Collector, "_read", but_the_last)
    words = ("collect", cold, "--grace", "0s", "--json", "--ray")
    assert run("archive", *words).exit_code == 1 and len(read) == 3

    def others(self: Collector, pack: bytes, census: LiveSet) -> None:
        read[pack] += 1
        whole(self, pack, census)

    monkeypatch.setattr(Collector, "_read", others)
    code, rows = said(run, *words)
    assert code == 0 and rows[0]["deleted"] == 4
    assert sorted(read.values()) == [1, 1, 1, 1, 1, 2]  # four, the copy, and the one that a deletion relies on
    assert said(run, "verify", cold, "--json")[0] == 0


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("named", [False, True])
def test_results_say_nothing_of_a_copy_in_another_folder(
    run: Run, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """A copy of the files has the same id and packs: its damage was called sound by the journal of the first."""
    cold, twin = tmp_path / "cold", tmp_path / "twin"
    run("archive", "init", cold)
    for file in sorted(logs.iterdir())[:4]:
        run("archive", "put", cold, file)
    shutil.copytree(cold, twin)
    for pack in (twin / "packs").iterdir():
        flip(pack)
    journal = ("--journal", tmp_path / "j") if named else ()
    whole, done = Verifier.check, list[bytes]()

    def but_the_last(self: Verifier, packs: Any, decode: bool) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.extend(packs)
        return whole(self, packs, decode)

    monkeypatch.setattr(Verifier, "check", but_the_last)
    assert run("archive", "verify", cold, "--ray", *journal).exit_code == 1 and len(done) == 3
    monkeypatch.setattr(Verifier, "check", whole)
    code, rows = said(run, "verify", twin, "--json", "--ray", *journal)
    assert code == 3 and not rows[-1]["sound"]
    assert (code, rows) == said(run, "verify", twin, "--json")


@pytest.mark.usefixtures("here")
def test_an_import_goes_on_unless_the_archive_went_back(
    run: Run, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pltz.archive import bulk
    from pltz.archive.archive import Archive

    monkeypatch.setattr(bulk, "PUT_SESSIONS", 6)
    cold, seen, whole = tmp_path / "cold", list[int](), Archive.put_many
    run("archive", "init", cold)

    def counted(self: Archive, requests: Any, **how: Any) -> Any:
        seen.append(len(requests))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return whole(self, requests, **how)

    monkeypatch.setattr(Archive, "put_many", counted)
    words = ("put", cold, logs, "--time", 7, "--json", "--ray")
    assert run("archive", *words).exit_code == 1
    (tmp_path / "kept").mkdir()
    packs = sorted((cold / "packs").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert len(packs) == 2
    code, rows = said(run, *words)
    assert code == 5 and len(rows) == 36 and not any(row["unchanged"] for row in rows)
    assert seen == [6, 6, 6, 6, 6, 6, 6, 1]
    # an archive that lost what the journal says gets it again
    again = tmp_path / "again"
    run("archive", "init", again)
    seen.clear()
    words = ("put", again, logs, "--time", 7, "--json", "--ray")
    assert run("archive", *words).exit_code == 1
    for folder in ("packs", "parity", "index"):
        for file in (again / folder).iterdir():
            if file.name != "archive.json":
                file.unlink()
    assert said(run, *words)[0] == 5 and len(seen) == 3 + 7
    assert len(said(run, "ls", again, "--json")[1]) == 36


@pytest.mark.usefixtures("here")
def test_another_coordinator_is_refused(run: Run, logs: Path, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    run("archive", "init", cold)
    with BulkLease(open_store(cold), "copy on Ray"):
        done = run("archive", "put", cold, logs, "--ray")
        assert done.exit_code == 7 and "another coordinator is at work" in done.stderr
        assert run("archive", "collect", cold, "--ray").exit_code == 7
        assert run("archive", "collect", cold).exit_code == 0
        assert run("archive", "put", cold, logs).exit_code == 5, "a put on one machine goes on beside it"
    assert run("archive", "put", cold, logs, "--ray").exit_code == 5
    assert run("archive", "verify", cold, "--ray").exit_code == 0


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("verify", "--ray", "COLD"), "put --ray without an address behind DIR"),
        (("verify", "COLD", "--journal", "j"), "--journal needs --ray"),
        (("verify", "COLD", "--ray", "--max-seconds", "3"), "--max-seconds"),
        (("export", "COLD", "-o", "x.pltz", "--ray"), "JSONL"),
        (("put", "COLD", "-", "--target", "mini-llama", "--ray"), "--target"),
    ],
)
def test_what_cannot_be_spread_is_said(run: Run, tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    cold = str(tmp_path / "cold")
    run("archive", "init", cold)
    done = run("archive", *(word.replace("COLD", cold) for word in words))
    assert done.exit_code == 2 and why in done.stderr, done.stderr


def test_without_ray_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"pltz\[ray\]"), bulk_ray.cluster(None):
        pass


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    import ray

    roots = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(filter(None, roots))}},
    )
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.ray
@needs_ray
def test_on_a_real_ray_of_which_workers_die(
    ray_here: Any, run: Run, logs: Path, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    killed, end = set[int](), threading.Event()

    def kill() -> None:
        """Kill the first worker that is seen, and every eighth after it."""
        seen = set[int]()
        while not end.wait(0.05):
            for worker in workers() - seen:
                seen.add(worker)
                if len(seen) % 8 == 1:
                    time.sleep(0.2)
                    try:
                        os.kill(worker, signal.SIGKILL)
                        killed.add(worker)
                    except ProcessLookupError:
                        continue

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        same(run, logs, tmp_path, "--bundle", tiny / "bundles/mini", each=slice(-1, None))
    finally:
        end.set()
        thread.join()
    assert killed


@pytest.mark.slow
@pytest.mark.ray
@needs_ray
def test_a_second_coordinator_on_a_real_ray_is_refused(
    ray_here: Any, run: Run, logs: Path, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes put the same history by the same cluster: one puts it, the other says why it does not."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    cold, address = tmp_path / "cold", ray_here.get_runtime_context().gcs_address
    assert run("archive", "init", cold).exit_code == 0
    words = [sys.executable, "-m", "pltz", "archive", "put", str(cold), str(logs), "--ray", address, "--json"]
    words += ["--bundle", str(tiny / "bundles/mini")]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 120
        while open_store(cold).load(BULK) is None and first.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        second = subprocess.run(words, capture_output=True, text=True, check=False)
        assert second.returncode == 7 and "another coordinator is at work on this archive (put" in second.stderr
        assert not second.stdout
        out, err = first.communicate(timeout=300)
    finally:
        first.kill()
    assert first.returncode == 5 and len(out.splitlines()) == 36, err  # one file is no session
    assert len(said(run, "ls", cold, "--json")[1]) == 36
    third = subprocess.run(words, capture_output=True, text=True, check=False)
    assert third.returncode == 5, third.stderr  # the lease of the first is over


def workers() -> set[int]:
    """Return the processes of Ray actors that do shards."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if re.match(rb"ray::ShardWorker", status.read_bytes()):
                found.add(int(status.parent.name))
        except OSError:
            continue
    return found
