"""Bundles added to the user's folder (models/bundle/user_bundles.py): whole and checked, or refused.

They come from folders, files and the hub.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pltz.models.bundle import locations
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.bundle.user_bundles import add, remove
from pltz.plt_codec.errors import BundleMismatch, ModelError, UsageError
from pltz.plt_codec.weights import random_weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder; nothing is embedded or installed."""
    monkeypatch.setattr(locations, "EMBEDDED", tmp_path / "embedded")
    monkeypatch.setattr(locations, "GROUP", "pltz.bundles.of.the.tests")
    monkeypatch.setenv("PLTZ_BUNDLES", str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.fixture
def folder(tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes]) -> Path:
    place = tmp_path / "source/tiny"
    weights = random_weights(1, vocab=512)
    write_bundle(place, "tiny", weights, tiny_tokenizer_json(512), b"words", {"note": "x"})
    (place / "CARD.md").write_text("# tiny\n")
    (place / "unrelated.bin").write_bytes(b"not of the bundle")
    return place


def zipped(folder: Path, to: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(to, "w") as archive:
        for path in folder.iterdir():
            archive.write(path, prefix + path.name)
    return to


def tarred(folder: Path, to: Path, name: str = ".") -> Path:
    with tarfile.open(to, "w:gz" if to.suffix == ".gz" else "w") as archive:
        archive.add(folder, name)
    return to


@pytest.mark.parametrize("form", ["folder", "zip", "zip with a folder", "tar", "tar.gz with a folder"])
def test_what_is_added_is_found(folder: Path, tmp_path: Path, user: Path, form: str) -> None:
    source = {
        "folder": lambda: folder,
        "zip": lambda: zipped(folder, tmp_path / "b.zip"),
        "zip with a folder": lambda: zipped(folder, tmp_path / "b.zip", "tiny/"),
        "tar": lambda: tarred(folder, tmp_path / "b.tar"),
        "tar.gz with a folder": lambda: tarred(folder, tmp_path / "b.tar.gz", "tiny"),
    }[form]()
    given = Bundle.load(folder)
    place = add(str(source), bundle_id=given.id.hex().upper())
    assert place == locations.BundleLocation("tiny", user / "tiny", "user")
    assert Bundle.load("tiny").id == Bundle.find(given.id).id == given.id
    assert Bundle.load("tiny").card == {"note": "x"} and (user / "tiny/CARD.md").read_text() == "# tiny\n"
    assert not (user / "tiny/unrelated.bin").exists()
    assert sorted(path.name for path in user.iterdir()) == [".lock", "tiny"]


def test_adding_again_changes_nothing(folder: Path, user: Path) -> None:
    before = add(str(folder)).folder.stat().st_ino
    assert add(str(folder)).folder.stat().st_ino == before


def test_a_name_belongs_to_one_bundle(
    folder: Path, user: Path, tiny_tokenizer_json: Callable[[int], bytes], tmp_path: Path
) -> None:
    add(str(folder))
    write_bundle(tmp_path / "b", "tiny", random_weights(2, vocab=512), tiny_tokenizer_json(512), b"", {})
    with pytest.raises(UsageError, match=r"another bundle has the name tiny .* --name"):
        add(str(tmp_path / "b"))
    assert add(str(tmp_path / "b"), name="other").name == "other" and Bundle.names() == ["other", "tiny"]


@pytest.mark.parametrize("name", ["../x", ".x", "a/b", "", "x" * 65, "a\0b"])
def test_bad_names_are_refused(folder: Path, user: Path, name: str) -> None:
    head = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**head, "name": name}))
    with pytest.raises(UsageError, match="no name for a bundle"):
        add(str(folder))
    assert [path.name for path in user.iterdir()] == [".lock"]


def test_another_fingerprint_is_refused(folder: Path, user: Path) -> None:
    with pytest.raises(BundleMismatch, match="expected bundle 0000"):
        add(str(folder), bundle_id="0" * 32)
    with pytest.raises(UsageError, match="32 hexadecimal digits"):
        add(str(folder), bundle_id="xyz")
    assert Bundle.names() == []


@pytest.mark.parametrize("form", ["folder", "zip", "tar"])
@pytest.mark.parametrize("damage", ["flip", "longer", "gone", "no head", "larger than allowed", "negative"])
def test_damage_is_refused(folder: Path, tmp_path: Path, user: Path, form: str, damage: str) -> None:
    weights, head = folder / "weights-0.safetensors", folder / "bundle.json"
    tree = json.loads(head.read_text())
    if damage == "flip":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "longer":
        weights.write_bytes(weights.read_bytes() + b"x")
    elif damage == "gone":
        weights.unlink()
    elif damage == "no head":
        head.unlink()
    else:
        tree["files"][weights.name]["size"] = 1 << 60 if damage == "larger than allowed" else -1
        head.write_text(json.dumps(tree))
    sources = {"folder": lambda: folder, "zip": lambda: zipped(folder, tmp_path / "b.zip")}
    source = sources.get(form, lambda: tarred(folder, tmp_path / "b.tar"))()
    with pytest.raises(ModelError):
        add(str(source))
    assert [path.name for path in user.iterdir()] == [".lock"]


def test_a_link_in_a_tar_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copy(folder / "dictionary.zst", secret)
    (folder / "dictionary.zst").unlink()
    (folder / "dictionary.zst").symlink_to(secret)
    with pytest.raises(ModelError, match=r"it has no dictionary\.zst"):
        add(str(tarred(folder, tmp_path / "b.tar")))


def test_members_outside_are_not_written(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tarred(folder, tmp_path / "b.tar"), "a") as archive:
        for name in ("../escaped", "/tmp/escaped-of-pltz"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    assert add(str(tmp_path / "b.tar")).name == "tiny"
    assert not list(tmp_path.rglob("escaped*")) and not Path("/tmp/escaped-of-pltz").exists()


def test_two_bundles_in_one_file_are_refused(folder: Path, tmp_path: Path) -> None:
    both = zipped(folder, tmp_path / "b.zip", "a/")
    with zipfile.ZipFile(both, "a") as archive:
        archive.write(folder / "bundle.json", "b/bundle.json")
    with pytest.raises(ModelError, match="found 2"):
        add(str(both))


def test_headers_of_a_tar_file_are_bounded(tmp_path: Path) -> None:
    """A few kilobytes of gzip may claim a header of gigabytes: it is refused before it is read."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 31
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(header.tobuf() + bytes(1 << 16)))
    with pytest.raises(ModelError, match="header of 2147483648 bytes"):
        add(str(tmp_path / "b.tar.gz"))
    far = tarfile.TarInfo("far")
    far.size = 1 << 40
    (tmp_path / "far.tar").write_bytes(far.tobuf() + bytes(1 << 16))
    with pytest.raises(ModelError, match="at most"):
        add(str(tmp_path / "far.tar"))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x1f\x8bxx", b"PK\x05\x06" + bytes(18)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ModelError):
        add(str(tmp_path / "file"))


def test_no_such_source() -> None:
    with pytest.raises(UsageError, match=r"found nothing at './nope\.zip'"):
        add("./nope.zip")


def test_removed(folder: Path, user: Path, tmp_path: Path) -> None:
    add(str(folder))
    remove("tiny")
    assert Bundle.names() == [] and [path.name for path in user.iterdir()] == [".lock"]
    with pytest.raises(UsageError, match="no bundle 'tiny'"):
        remove("tiny")
    shutil.copytree(folder, tmp_path / "embedded/tiny")
    with pytest.raises(UsageError, match="part of pltz"):
        remove("tiny")


def test_a_killed_add_leaves_nothing_that_counts(folder: Path, user: Path) -> None:
    code = (
        "import os, sys\n"
        "from pltz.models.bundle import user_bundles\n"
        "user_bundles.publish = lambda part, final: os._exit(9)\n"
        "user_bundles.add(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert done.returncode == 9 and Bundle.names() == [] and len(list(user.glob(".part-*"))) == 1
    add(str(folder))
    assert Bundle.names() == ["tiny"] and not list(user.glob(".part-*"))


class Hub(BaseHTTPRequestHandler):
    """The answers of a hub for one repository, owner/tiny, whose files lie in `folder`."""

    folder: Path
    requests: list[str]

    def do_HEAD(self) -> None:
        """Answer a question for a file's size and commit."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """Answer with a file."""
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.requests.append(f"{self.command} {self.path}")
        prefix, _, name = self.path.rpartition("/")
        path = self.folder / name
        if prefix not in (
            "/owner/tiny/resolve/main",
            f"/owner/tiny/resolve/{COMMIT}",
            "/owner/tiny/resolve/v1",
        ):
            return self._head(404, {"X-Error-Code": "RepoNotFound", "Content-Length": "0"})
        if not path.is_file():
            return self._head(404, {"X-Error-Code": "EntryNotFound", "Content-Length": "0"})
        data = path.read_bytes()
        self._head(
            200, {"Content-Length": str(len(data)), "ETag": f'"{len(data)}{name}"', "X-Repo-Commit": COMMIT}
        )
        if body:
            self.wfile.write(data)
        return None

    def _head(self, status: int, fields: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in fields.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    """A local server that speaks the hub's protocol; HF_ENDPOINT of child processes names it."""

    class Local(Hub):
        pass

    Local.folder, Local.requests = folder, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Local)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield Local
    server.shutdown()
    server.server_close()


def run_add(source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: huggingface_hub reads HF_ENDPOINT when it is imported."""
    command = [sys.executable, "-m", "pltz", "bundle", "add", source, *options]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_from_the_hub(folder: Path, hub: type[Hub], user: Path) -> None:
    given = Bundle.load(folder)
    done = run_add("owner/tiny@v1", "--id", given.id.hex())
    assert done.returncode == 0, done.stderr
    assert Bundle.load("tiny").id == given.id and Bundle.load("tiny").path == user / "tiny"
    assert not any("unrelated" in request for request in hub.requests)
    assert any("/owner/tiny/resolve/v1/bundle.json" in request for request in hub.requests)


def test_the_hub_has_another_file_than_bundle_json_says(folder: Path, hub: type[Hub]) -> None:
    path = folder / "dictionary.zst"
    path.write_bytes(path.read_bytes() + bytes(1000))
    done = run_add("owner/tiny")
    assert done.returncode == 6 and "dictionary.zst" in done.stderr and Bundle.names() == []
    assert not any(r.startswith("GET") and "dictionary" in r for r in hub.requests)  # refused by its size


def test_the_hub_has_no_such_repository_or_does_not_answer(hub: type[Hub]) -> None:
    done = run_add("owner/other")
    assert done.returncode == 6 and "check the name and the network" in done.stderr
    hub.folder = hub.folder.parent
    done = run_add("owner/tiny")
    assert done.returncode == 6 and "no bundle.json" in done.stderr
