"""Parts do together what one call does, a missing part is never a sound archive, and --ray runs all of them."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pltz.cli.archive import parts
from tests.cli.archive.test_verify import flip
from tests.cli.commands import SYSTEM, Run, chat

pytestmark = pytest.mark.usefixtures("bundle_at_hand")
OF = 3


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Make a folder of seven files of chats that grow from one to the next, and one that is no session."""
    folder = tmp_path / "history"
    folder.mkdir()
    for n in range(7):
        rows = [chat(1 + n), {"messages": [SYSTEM, {"role": "user", "content": f"Where is order {n}?"}]}]
        (folder / f"{n}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "7.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}))
    return folder


@pytest.fixture
def packed(run: Run, history: Path, tmp_path: Path) -> Path:
    """Make an archive of seven packs, of which the later ones need segments of the earlier ones."""
    place = tmp_path / "cold"
    run("archive", "init", "-r", place)
    for file in sorted(history.iterdir())[:7]:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        one = tmp_path / "one.json"
        one.write_text(json.dumps(rows[0]))
        assert run("archive", "put", "-r", place, one, "--name", "grows").exit_code == 0
        one.write_text(json.dumps(rows[1]))
        assert run("archive", "put", "-r", place, one, "--name", f"s/{file.stem}").exit_code == 0
    assert len(list((place / "packs").iterdir())) == 14
    return place


def placed(words: tuple[object, ...]) -> tuple[object, ...]:
    """Return a command with -r before its first word; join has no archive."""
    return words if words[0] == "join" else (words[0], "-r", *words[1:])


def printed(run: Run, *words: object) -> tuple[int, list[dict[str, Any]]]:
    done = run("archive", *placed(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


def in_parts(run: Run, folder: Path, *words: object) -> list[Path]:
    """Run all parts of a command and return the files of what they printed."""
    files = [folder / f"{n}.report" for n in range(1, OF + 1)]
    for n, file in enumerate(files, 1):
        file.write_text(run("archive", *placed(words), "--part", f"{n}/{OF}", "--json").stdout)
    return files


def compare(run: Run, place: Path, folder: Path, *words: object) -> dict[str, Any]:
    """Verify at once and in parts, and compare all that both print. Return the report."""
    code, want = printed(run, "verify", place, "--json", *words)
    joined, found = printed(run, "join", *in_parts(run, folder, "verify", place, *words))
    assert joined == code and found[-1] == want[-1] | {"parts": OF}
    rows = [sorted(json.dumps(row) for row in each[:-1]) for each in (want, found)]
    assert rows[0] == rows[1]
    return found[-1]


def test_parts_of_a_verify_find_what_a_whole_one_does(run: Run, packed: Path, tmp_path: Path) -> None:
    for words in ((), ("--decode",)):
        report = compare(run, packed, tmp_path, *words)
        assert report["sound"] and report["complete"] and report["packs"] == 14
    next(iter((packed / "parity").glob("?" * 32))).unlink()
    assert compare(run, packed, tmp_path)["missing_copies"] == 1
    flip(min((packed / "packs").iterdir()))
    for words in ((), ("--decode",)):
        report = compare(run, packed, tmp_path, *words)
        assert not report["sound"] and report["problems"]


def test_a_part_sees_that_a_segment_of_another_part_is_gone(
    run: Run, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells of the pack itself, so only the look-up of the parents of records does."""
    from pltz.archive.catalog.listing import Listing
    from pltz.archive.catalog.lookup import RecordLookup

    first = min((packed / "packs").iterdir(), key=lambda file: file.stat().st_mtime_ns).name
    find = RecordLookup.find
    monkeypatch.setattr(
        RecordLookup, "find", lambda *words: [i for i in find(*words) if i.location.pack.hex() != first]
    )
    monkeypatch.setattr(Listing, "missing", lambda self: frozenset())
    files = in_parts(run, tmp_path, "verify", packed)
    code, rows = printed(run, "join", *files)
    assert "grows" in {row["lost_session"]["name"] for row in rows[:-1]}
    assert code == 3 and not rows[-1]["sound"] and rows[-1]["lost"] == len(rows) - 1


def test_a_part_that_is_missing_is_never_sound(run: Run, packed: Path, tmp_path: Path) -> None:
    files = in_parts(run, tmp_path, "verify", packed)
    alone = json.loads(files[0].read_text().splitlines()[-1])
    assert alone["part"] == "1/3" and alone["sound"] and not alone["complete"]
    for some in (files[:2], files[1:], files[:1]):
        done = run("archive", "join", *some)
        assert done.exit_code == 7 and "are missing: run" in done.stderr and '"sound"' not in done.stdout
    done = run("archive", "join", *files, files[0])
    assert done.exit_code == 2 and "part 1/3 again" in done.stderr
    # of other work, or of another number of parts
    for words in (("--decode", "--part", "3/3"), ("--part", "3/4")):
        other = tmp_path / "other.report"
        other.write_text(run("archive", "verify", "-r", packed, *words, "--json").stdout)
        done = run("archive", "join", *files[:2], other)
        assert done.exit_code == 2 and "is of another command" in done.stderr
    for text in ("", "nonsense", "{}", "[]", '{"part": "3/3"}', files[2].read_text()[:-9]):
        files[2].write_text(text)
        done = run("archive", "join", *files)
        assert done.exit_code == 7 and "run that part again" in done.stderr and '"parts"' not in done.stdout


def test_parts_of_get_and_copy_and_put(run: Run, packed: Path, history: Path, tmp_path: Path) -> None:
    # get: each session once
    run("archive", "get", "-r", packed, "-o", tmp_path / "all.jsonl")
    for n in range(1, OF + 1):
        out = tmp_path / f"all-{n}.jsonl"
        code, [row] = printed(run, "get", packed, "-o", out, "--part", f"{n}/{OF}", "--json")
        (tmp_path / f"{n}.report").write_text(json.dumps(row))
        assert code == 0 and row["sessions"] == out.read_text().count("\n") > 0
    whole, found = (sorted(b"".join(f.read_bytes() for f in tmp_path.glob(p)).splitlines()) for p in ("all.*", "all-*"))
    assert whole == found and len(whole) == 8
    assert printed(run, "join", *tmp_path.glob("*.report"))[1][-1]["sessions"] == 8
    # copy: all versions, and nothing the second time
    other = tmp_path / "other"
    run("archive", "init", "-r", other)
    for copied, there in ((14, 0), (0, 14)):
        _, rows = printed(run, "join", *in_parts(run, tmp_path, "copy", packed, other))
        assert len(rows) == 15 and (rows[-1]["copied"], rows[-1]["there"]) == (copied, there)
    lists = [printed(run, "ls", place, "--history", "--json")[1] for place in (packed, other)]
    assert [(row["name"], row["version"]) for row in lists[0]] == [(row["name"], row["version"]) for row in lists[1]]
    # put: a file that is no session is refused once
    third = tmp_path / "third"
    run("archive", "init", "-r", third)
    code, rows = printed(run, "join", *in_parts(run, tmp_path, "put", third, history))
    assert code == 5 and (rows[-1]["sessions"], rows[-1]["refused"]) == (14, 1)
    assert {row["name"] for row in rows[:-1]} == {row["name"] for row in printed(run, "ls", third, "--json")[1]}


def test_a_part_that_damage_may_have_cut_short_reports_nothing(run: Run, packed: Path, tmp_path: Path) -> None:
    flip(min((packed / "packs").iterdir()))
    done = run("archive", "get", "-r", packed, "-o", tmp_path / "a.jsonl", "--part", "1/2", "--json")
    assert done.exit_code in (3, 7) and '"part"' not in done.stdout


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, run: Run) -> list[list[str]]:
    """Make a cluster of three processors that runs each part in this process, the last first."""
    calls: list[list[str]] = []

    def work(words: list[str]) -> tuple[int, str, str]:
        calls.append(words)
        done = run(*words)
        return done.exit_code, done.stdout, done.stderr

    ray = SimpleNamespace(
        init=lambda **how: None, shutdown=lambda: None, cluster_resources=lambda: {"CPU": float(OF)},
        remote=lambda **how: lambda task: SimpleNamespace(remote=lambda words: (task, tuple(words))),
        wait=lambda waiting, num_returns: ([waiting[-1]], waiting[:-1]), get=lambda call: call[0](list(call[1])),
        exceptions=SimpleNamespace(RayError=ConnectionError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(parts, "run_here", work)
    return calls


def test_ray_runs_all_parts(run: Run, packed: Path, history: Path, tmp_path: Path, here: list[list[str]]) -> None:
    code, rows = printed(run, "verify", packed, "--ray", "auto")
    assert code == 0 and rows == [printed(run, "verify", packed, "--json")[1][-1] | {"parts": OF}]
    assert [words[-3:] for words in here] == [["--part", f"{n}/3", "--json"] for n in (3, 2, 1)]
    out = tmp_path / "all.jsonl"
    code, rows = printed(run, "get", packed, "--ray=auto", "-o", out, "grows", "--", "s/1")
    assert code == 0 and rows[-1]["sessions"] == 2 and rows[-1]["output"] is None and not out.exists()
    assert sum((tmp_path / f"all-{n}-of-3.jsonl").read_text().count("\n") for n in (1, 2, 3)) == 2
    third = tmp_path / "third"
    run("archive", "init", "-r", third)
    code, rows = printed(run, "put", third, history, "--ray", "auto")
    assert code == 5 and rows[-1]["sessions"] == 14 == len(printed(run, "ls", third, "--json")[1])
    # a part that fails: its reason, and no report
    flip(min((packed / "packs").iterdir()))
    assert printed(run, "verify", packed, "--ray", "auto")[0] == 3
    done = run("archive", "get", "-r", packed, "-o", tmp_path / "b.jsonl", "--ray", "auto")
    assert done.exit_code == 7 and "(exit code " in done.stderr and '"parts"' not in done.stdout


@pytest.mark.parametrize(("words", "why"), [
    (("verify", "COLD", "--part", "4/3"), "N/M"),
    (("verify", "COLD", "--part", "1/3", "--ray", "auto"), "--ray does all parts"),
    (("put", "COLD", "-", "--ray", "auto"), "name files"),
    (("get", "COLD", "-o", "-", "--ray", "auto"), "name files"),
])
def test_what_cannot_be_divided_is_said(run: Run, cold: Path, words: tuple[str, ...], why: str) -> None:
    done = run("archive", *placed(tuple(word.replace("COLD", str(cold)) for word in words)))
    assert done.exit_code == 2 and why in done.stderr, done.stderr


def test_without_ray_it_is_said(run: Run, cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = run("archive", "verify", "-r", cold, "--ray", "auto")
    assert done.exit_code == 2 and "pltz[ray]" in done.stderr


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_on_a_real_ray(run: Run, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(__file__).resolve().parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
    code, rows = printed(run, "verify", packed, "--ray", "local")
    want = printed(run, "verify", packed, "--json")[1]
    assert code == 0 and rows == [want[-1] | {"parts": rows[-1]["parts"]}]
