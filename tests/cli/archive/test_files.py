"""``pltz archive get -o FOLDER/``: the files that were put, under names that stay in the folder."""

import gzip
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from unittest.mock import Mock

import pytest
import zstandard

from pltz.archive.catalog.reader import SessionReader
from pltz.cli.archive.files import Paths, compared, safe
from pltz.cli.ui.output import Output
from pltz.datasets import file_forms
from pltz.models.session.session import Session
from tests.cli.commands import Run, chat, into, ok
from tests.files import files_in, write_files
from tests.watch import noted

pytestmark = pytest.mark.usefixtures("bundle_at_hand")

EVENTS = [
    {"type": "user", "sessionId": "s", "uuid": "1", "message": {"role": "user", "content": "Hi"}},
    {"type": "assistant", "sessionId": "s", "uuid": "2", "message": {"role": "assistant", "content": "Hello"}},
]


def jsonl(rows: Sequence[object]) -> bytes:
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


@pytest.fixture
def put(run: Run, cold: Path, tmp_path: Path) -> dict[str, bytes]:
    """Put a folder of files of several kinds, and return its files."""
    files = {
        "chats.jsonl": jsonl([chat(n) for n in range(12)]), "shop/0f3a.jsonl": jsonl(EVENTS),
        "notes.txt": b"one\ntwo \xff", "odd.jsonl": b'{"a": 1}\n\n{"b":NaN}\n{"c":[1.0]}',
    }
    write_files(tmp_path / "in", files)
    for name in ("chats.jsonl", "shop", "notes.txt", "odd.jsonl"):
        ok(run("archive", "put", "-r", cold, tmp_path / "in" / name, "--exact"))
    return files


STORED = jsonl(EVENTS)
CLASHES = {  # what is there: by what it was made, whether it is older, and what becomes of it by each way
    "equal": (STORED, True, "there", "there", "there"),
    "longer": (STORED + b"{}\n", True, "there", "there", "written"),
    "shorter": (STORED[:40], False, "refused", "written", "written"),
    "older": (b"mine\n", True, "refused", "written", "written"),
    "newer": (b"mine\n", False, "refused", "there", "written"),
}


@pytest.mark.parametrize("clash", CLASHES)
@pytest.mark.parametrize("way", ["--missing", "--newer-wins", "--force"])
def test_a_file_that_is_there_is_left_refused_or_replaced(
    run: Run, cold: Path, put: dict[str, bytes], tmp_path: Path, clash: str, way: str
) -> None:
    found, is_older, *fates = CLASHES[clash]
    fate = fates[["--missing", "--newer-wins", "--force"].index(way)]
    log, put_at = tmp_path / "out/shop/0f3a.jsonl", (tmp_path / "in/shop/0f3a.jsonl").stat().st_mtime_ns
    log.parent.mkdir(parents=True)
    log.write_bytes(found)
    os.utime(log, ns=(0, put_at - 1 if is_older else put_at + 1))
    done = run("archive", "get", "-r", cold, "-o", into(tmp_path / "out"), way, "--json")
    told = json.loads(done.stdout)
    counts = {"written": told["files"] - 3, "there": told["there"], "refused": told["refused"]}
    assert counts == {each: int(each == fate) for each in counts}
    assert done.exit_code == (2 if fate == "refused" else 0), done.output
    assert log.read_bytes() == (STORED if fate == "written" else found)
    assert ("goes on where the stored version ends" in done.stderr) == (clash == "longer")
    assert ("differs" in done.stderr) == (clash in ("older", "newer") and fate != "written")
    if fate == "refused":
        assert ("lacks the end" in done.stderr) == (clash == "shorter")
    assert (log.stat().st_mtime_ns == put_at) == (fate == "written")


def test_what_is_there_as_it_was_put_is_not_decoded(
    run: Run, cold: Path, put: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = noted(
        monkeypatch, SessionReader, "read_many", lambda _, versions: [version.name for version in versions], flat=True
    )
    call = ("archive", "get", "-r", cold, "-o", into(tmp_path / "out"), "--json")
    assert run(*call).exit_code == 0 and len(read) == 15
    (tmp_path / "out/notes.txt").unlink()
    read.clear()
    told = json.loads(run(*call).stdout)
    assert read == [*(f"chats/{n}" for n in range(12)), "notes/0"]  # a file of many has no time of its own
    assert (told["files"], told["there"]) == (1, 3)


def test_options_of_a_folder_stand_alone(run: Run, cold: Path, tmp_path: Path) -> None:
    for words in ((tmp_path / "one.jsonl",), (into(tmp_path), "--force"), (into(tmp_path), "--missing")):
        assert run("archive", "get", "-r", cold, "--newer-wins", "-o", *words).exit_code == 2


ODD = ["new\nline", "tab\t", "back\\slash", "a:b", '"quoted"', "%25", "case", "Case", "end.", ".", "..", "x" * 240]
ODD += ["\u202eover"]


def test_names_come_back_byte_for_byte_where_the_file_system_has_them(run: Run, cold: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, name in enumerate(ODD):
        (tmp_path / "in" / f"{name}.txt").write_bytes(b"text %d" % number)
    assert run("archive", "put", "-r", cold, tmp_path / "in").exit_code == 0
    done = run("archive", "get", "-r", cold, "-o", into(tmp_path / "out"))
    assert done.exit_code == 0 and "written as" not in done.stderr
    assert files_in(tmp_path / "out") == files_in(tmp_path / "in")
    (tmp_path / "long.txt").write_bytes(b"long")
    assert run("archive", "put", "-r", cold, tmp_path / "long.txt", "--name", "y" * 300).exit_code == 0
    done = run("archive", "get", "-r", cold, "y*", "-o", into(tmp_path / "cut"))
    assert done.exit_code == 0 and f"{'y' * 300}: written as {'y' * 200}.txt" in done.stderr
    assert files_in(tmp_path / "cut") == {f"{'y' * 200}.txt": b"long"}


def test_a_packed_log_comes_back_packed(run: Run, cold: Path, tmp_path: Path) -> None:
    rows = [{**EVENTS[0], "uuid": f"{n}"} for n in range(2000)]
    log = jsonl(rows)
    files = {
        "a/one.jsonl.zstd": zstandard.compress(log), "a/one/subagents/b.jsonl.zst": zstandard.compress(log),
        "a/two.jsonl.gz": gzip.compress(log), "a/rollout-2026-01-05T09-00-00-a1.jsonl.zst": zstandard.compress(log),
    }
    write_files(tmp_path / "in", files)
    (tmp_path / "in/a/one/picture.gz").write_bytes(gzip.compress(b"kept as it is"))
    (tmp_path / "in/chats.jsonl.gz").write_bytes(gzip.compress(b'{"messages":[]}\n'))  # values, which are no files
    told = run("archive", "put", "-r", cold, tmp_path / "in", "--dry-run", "--json").stdout.splitlines()[-1]
    packings = json.loads(told)["not_stored"]["packings"]
    assert packings == sorted(str(tmp_path / "in" / name) for name in files)
    out = tmp_path / "out.pltz"
    done = run("compress", *packings, "-o", out, "--json")
    assert json.loads(done.stdout)["packings"] == packings
    done = run("compress", *packings, "-o", out, "--force")
    assert "what is in 4 packed files is kept, not how it was packed" in done.stderr + done.stdout
    done = run("archive", "put", "-r", cold, tmp_path / "in")
    assert done.exit_code == 0 and "; what is in 4 packed files is kept, not how it was packed\n" in done.stderr
    listed = [json.loads(line) for line in run("archive", "ls", "-r", cold, "--json").stdout.splitlines()]
    assert {row["name"]: row["kind"] for row in listed}.items() >= {"a/two": "log", "chats/0": "chat"}.items()
    call = ("archive", "get", "-r", cold, "-o", into(tmp_path / "out"), "--json")
    assert run(*call).exit_code == 0
    found = files_in(tmp_path / "out")
    assert found.pop("chats.jsonl") and found.pop("a/one/picture.gz")[:2] == b"\x1f\x8b"
    assert found.pop("2026/01/05/rollout-2026-01-05T09-00-00-a1.jsonl") == log
    assert gzip.decompress(found.pop("a/two.jsonl.gz")) == log
    assert found.keys() == files.keys() - {"a/two.jsonl.gz", "a/rollout-2026-01-05T09-00-00-a1.jsonl.zst"}
    for data in found.values():
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        assert unpacker.decompress(data) == jsonl(rows[:1]) and unpacker.unused_data  # its first line is a frame
        assert zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read() == log
    torn = (tmp_path / "out/a/one.jsonl.zstd").read_bytes()[:-9]
    (tmp_path / "out/a/one.jsonl.zstd").write_bytes(torn)
    (tmp_path / "out/a/two.jsonl.gz").write_bytes(gzip.compress(log + jsonl(rows[:1])))
    done = run(*call)  # compared by what is in them
    told = json.loads(done.stdout)
    assert (told["there"], told["refused"], done.exit_code) == (5, 1, 2)
    assert "one.jsonl.zstd lacks the end" in done.stderr and "two.jsonl.gz goes on" in done.stderr


@pytest.mark.parametrize(("there", "stored", "what"), [
    (b"a\n", b"a\n", "equal"), (b"a", b"a\n", "equal"), (b"a\nb", b"a\n", "longer"), (b"a\nb", b"a", "longer"),
    (b"ab", b"a", "other"), (b"a", b"a\nb\n", "shorter"), (b"b\n", b"a\n", "other"), (b"", b"", "equal"),
    (b"a", b"", "longer"), (b"", b"a\n", "shorter"),
])
def test_files_are_compared_by_their_bytes(tmp_path: Path, there: bytes, stored: bytes, what: str) -> None:
    (tmp_path / "a").write_bytes(there)
    assert compared(tmp_path / "a", io.BytesIO(stored)) == what


def lay(path: Path, kind: str, target: Path) -> None:
    """Lay something in the way of a file, or of its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(target if kind == "link" else target.with_name("nowhere"))


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
def test_what_lies_in_the_folder_is_not_followed(
    run: Run, cold: Path, put: dict[str, bytes], tmp_path: Path, kind: str, force: tuple[str, ...]
) -> None:
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_bytes(b"keep")
    lay(tmp_path / "out" / "notes.txt", kind, secret)
    done = run("archive", "get", "-r", cold, "-o", into(tmp_path / "out"), *force)
    assert done.exit_code == 2 and "out/notes.txt is no plain file" in done.stderr and "1 file refused" in done.stdout
    assert len(files_in(tmp_path / "out")) == 3 + (kind == "link")
    assert secret.read_bytes() == b"keep" and os.listdir(secret.parent) == ["secret"]


def test_no_folder_that_is_a_link_is_followed(run: Run, cold: Path, put: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    lay(tmp_path / "out" / "shop", "link", tmp_path / "outside")
    done = run("archive", "get", "-r", cold, "-o", into(tmp_path / "out"), "--json")
    assert done.exit_code == 2 and "out/shop is a link" in done.stderr and not os.listdir(tmp_path / "outside")
    assert (json.loads(done.stdout)["files"], json.loads(done.stdout)["refused"]) == (3, 1)
    lay(tmp_path / "dangling", "dangling", tmp_path / "outside")
    done = run("archive", "get", "-r", cold, "-o", into(tmp_path / "dangling"))
    assert done.exit_code == 2 and "is no folder" in done.stderr


def test_a_session_that_cannot_be_written_stops_no_other(
    run: Run, cold: Path, put: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = file_forms.is_line

    def fails(session: Session, *, numbered: bool) -> bool:
        if session.value == chat(1):
            raise TypeError("no line")
        return usual(session, numbered=numbered)

    monkeypatch.setattr(file_forms, "is_line", fails)
    done = run("archive", "get", "-r", cold, "-o", into(tmp_path / "out"))
    assert done.exit_code == 5 and "refused: session 'chats/0': cannot be read (TypeError: no line)" in done.stderr
    assert len(files_in(tmp_path / "out")) == 3 and (tmp_path / "out" / "odd.jsonl").read_bytes() == put["odd.jsonl"]
    monkeypatch.setattr(file_forms, "is_line", usual)
    monkeypatch.setattr(Output, "write", Mock(side_effect=PermissionError(13, "not yours")))
    done = run("archive", "get", "-r", cold, "-o", into(tmp_path / "out"))
    assert done.exit_code == 2 and "refused: [Errno 13] not yours" in done.stderr and "1 file refused" in done.stdout


def test_tenants_have_folders_and_names_stay_inside(run: Run, cold: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    for number, (tenant, name) in enumerate(
        [("..", "../../escaped"), ("acme", "/etc/passwd"), ("acme", "a"), ("acme", "A"), ("acme", "a.txt/b")]
    ):
        text.write_bytes(b"text %d" % number)
        ok(run("archive", "put", "-r", cold, text, "--tenant", tenant, "--name", name))
    done = ok(run("archive", "get", "-r", cold, "-o", into(tmp_path / "in" / "out")))
    found = files_in(tmp_path / "in" / "out")
    assert sorted(found.values()) == [b"text %d" % n for n in range(5)]
    assert found["%2E%2E/%2E%2E/%2E%2E/escaped.txt"] == b"text 0"
    assert "%2E%2E" in done.stderr and "written as" in done.stderr and not list(tmp_path.glob("*escaped*"))


def test_parts_of_names_are_parts_of_paths() -> None:
    for name in ("..", ".", "", "x" * 300, "\ud800", "nul\0", "ü" * 150, "a:b", "\n"):
        for narrow in (False, True):
            part = safe(name, narrow=narrow)
            assert len(PurePath(part).parts) == 1 and part not in (".", "..") and "\0" not in part
            assert part.encode() and (len(part.encode()) <= 255 or not narrow)


def test_no_two_files_meet(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    found = [paths.free(PurePath(stem), ".txt") for stem in ("a", "A", "a", "a.txt/b", "c/d", "c")]
    assert [str(path) for path in found] == ["a.txt", "A.txt", "a~2.txt", "a.txt~2/b.txt", "c/d.txt", "c.txt"]


def test_lists_of_messages_and_logs_of_one_document_come_back_as_such(run: Run, cold: Path, tmp_path: Path) -> None:
    shown = [{"ts": 1767603600000 + n, "type": "say", "say": "text", "text": f"line {n}"} for n in range(3)]
    files = {
        "lists.jsonl": jsonl([chat(n)["messages"] for n in range(2)]),  # two chats, and no conversation of both
        "tasks/7/ui_messages.json": jsonl([shown]),  # of Cline
        "shop/issue-7.traj.json": jsonl([{"trajectory": [], "history": [], "info": {}}]),
        "shop/chat.json": jsonl([chat(3)["messages"]]),
    }
    write_files(tmp_path / "in", files)
    assert run("archive", "put", "-r", cold, tmp_path / "in").exit_code == 0
    assert run("archive", "get", "-r", cold, "-o", into(tmp_path / "out")).exit_code == 0
    assert files_in(tmp_path / "out") == files
    assert run("archive", "get", "-r", cold, "tasks/7/ui_messages").stdout_bytes == files["tasks/7/ui_messages.json"]


FORMS = {
    "one.jsonl": jsonl([chat(1)]),
    "one.json": json.dumps(chat(2)).encode(),
    "one.ndjson": jsonl([chat(3)]),
    "many.jsonl": jsonl([chat(4), chat(5)]),
    "notes.md": b"# Notes\n",
    "code.py": b"print(1)\n",
    "bytes.bin": b"\xff\x00",
    "LICENCE": b"All rights\n",
    "log.tar.txt": b"words\n",
}


def test_each_file_has_the_suffix_that_it_was_put_with(run: Run, cold: Path, tmp_path: Path) -> None:
    for number, (name, data) in enumerate(FORMS.items()):
        path = tmp_path / f"in/{number}/{name}"  # a folder each: chats of one.json and one.jsonl have one name else
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    assert run("archive", "put", "-r", cold, tmp_path / "in", "--exact").exit_code == 0
    assert run("archive", "get", "-r", cold, "-o", into(tmp_path / "out")).exit_code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == FORMS
    rows = [json.loads(line) for line in run("archive", "ls", "-r", cold, "--json").stdout.splitlines()]
    assert {row["name"]: row["tags"] for row in rows if row["name"] in ("1/one/0", "3/many/0", "3/many/1")} == {
        "1/one/0": {}, "3/many/0": {}, "3/many/1": {},
    }
    (tmp_path / "in/0/one.jsonl").write_bytes(jsonl([chat(1), chat(6)]))
    assert run("archive", "put", "-r", cold, tmp_path / "in", "--exact").exit_code == 0
    assert run("archive", "get", "-r", cold, "0/*", "-o", into(tmp_path / "again")).exit_code == 0
    assert files_in(tmp_path / "again") == {"0/one.jsonl": jsonl([chat(1), chat(6)])}
