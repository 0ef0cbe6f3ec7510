"""Versions: each format refuses one that it has no reader for by name, and reads a second one as soon as it has."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from pltz.archive.catalog import losses
from pltz.archive.encryption import key_files
from pltz.archive.encryption.key_files import KeyFile
from pltz.archive.format import audit, hold, index_file, manifest, pack, parity, settings
from pltz.archive.format.index_file import FileIndex
from pltz.archive.format.pack import Pack
from pltz.archive.format.parity import Parity
from pltz.archive.format.settings import Settings
from pltz.benchmarks.kv.random_calibration import random_calibration
from pltz.coding.log import table
from pltz.kv.engines.streams import PRECISION, SYMBOLS, TABLES, Tables
from pltz.kv.predictive import calibration
from pltz.kv.predictive.calibration import Calibration, KVShape
from pltz.kv.store import kv_file
from pltz.kv.store.kv_file import KVFile
from pltz.kv.store.kv_folder import KVFolder
from pltz.models.bundle import folder
from pltz.models.bundle.folder import BundleFolder
from pltz.plt_codec.container import header
from pltz.plt_codec.container.header import Header
from pltz.plt_codec.errors import FormatError, VersionError
from pltz.plt_codec.versions import Readers
from pltz.serving.engines import slot_keeper
from pltz.serving.eviction.journal import segment
from pltz.serving.nightly import receipt
from tests.archive.format.test_pack import pack_of

ROOT = Path(__file__).resolve().parents[2]
ID = b"identity........"
OWN = segment.Name(ID, 0)
LINE = b'{"type":"user"}\n'


@dataclass
class Format:
    """A format: its module, how a file of it is made in a folder, and how that is read."""

    module: ModuleType
    make: Callable[[Path], Any]
    read: Callable[[Any], object]

    @property
    def constant(self) -> str:
        """Return the name of the constant that the writer takes the version from."""
        return next(name for name in ("FORMAT_VERSION", "VERSION", "FORMAT") if hasattr(self.module, name))

    @property
    def readers(self) -> Readers[Any]:
        found: Readers[Any] = self.module.VERSIONS
        return found


def a_calibration(path: Path) -> Path:
    freq = np.full((TABLES, SYMBOLS), (1 << PRECISION) // SYMBOLS, np.uint16)
    tables = Tables(freq, np.zeros(TABLES, np.uint16), np.zeros((1, 16), np.int16))
    return random_calibration(ID, KVShape(1, 2, 4, 8), 0, tables).save(path / "own.kv")


def a_kv_file(path: Path) -> Path:
    folder, name = KVFolder(path, ID, 1 << 24), ID * 2
    assert folder.write(KVFile("ids", ID, name, {"ids": torch.arange(20, dtype=torch.int32)}))
    return folder.path(name, "ids")


def a_bundle(path: Path) -> Path:
    shutil.copy(ROOT / "models/bundles/mini/bundle.json", path)
    head = json.loads((path / "bundle.json").read_text())
    (path / "bundle.json").write_text(json.dumps(head | {"format": folder.FORMAT}))
    return path


FORMATS = {
    "header": Format(header, lambda _: Header(ID).encode(), Header.decode),
    "settings": Format(settings, lambda _: Settings(ID).encode(), Settings.decode),
    "pack": Format(pack, lambda _: pack_of(1), Pack.of),
    "index": Format(index_file, lambda _: index_file.build([], {}), FileIndex.of),
    "keys": Format(key_files, lambda _: KeyFile(ID, 1, b"box").encode(), KeyFile.decode),
    "parity": Format(parity, lambda _: Parity.of(ID, bytes(5000)).encode(), Parity.decode),
    "receipt": Format(
        receipt,
        lambda _: receipt.encode(1, {bytes(16): bytes(16)}),
        lambda made: receipt.ReceiptFile.decode(made[1], made[0]),
    ),
    "journal": Format(
        segment,
        lambda _: OWN.head() + OWN.frames(segment.HEAD_SIZE, [b"entry"]),
        lambda data: list(segment.scan(OWN, data, 0)),
    ),
    "calibration": Format(calibration, a_calibration, Calibration.load),
    "file of KV": Format(kv_file, a_kv_file, kv_file.read),
    "bundle": Format(folder, a_bundle, BundleFolder.open),
    "table": Format(
        table, lambda _: table.split(LINE), lambda made: table.join(made.columns, made.opaque, made.pieces, len(LINE))
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_second_version_is_read_by_its_reader(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a newer pltz wrote, which changed nothing but the version."""
    form = FORMATS[name]
    form.read(form.make(tmp_path))
    newest = max(form.readers)
    with monkeypatch.context() as newer:
        newer.setattr(form.module, form.constant, newest + 1)
        if form.module in (calibration, kv_file):
            newer.setattr(form.module, "FORMAT", f"{form.module.NAME} {newest + 1}")
        (tmp_path / "newer").mkdir()
        made = form.make(tmp_path / "newer")
    with pytest.raises(FormatError, match=f"is of version {newest + 1}, this pltz reads .*{newest}: use a newer pltz"):
        form.read(made)
    monkeypatch.setitem(form.readers, newest + 1, form.readers[newest])
    form.read(made)


def test_the_document_names_the_versions_that_are_read() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([\d, ]+) \|", (ROOT / "docs/formats.md").read_text("utf8"), re.MULTILINE)
    read: dict[str, list[int]] = {
        "`.pltz` file": [header.FORMAT_VERSION], "bundle folder": [folder.FORMAT],
        "log frame and table of an agent's log": [table.VERSION], "`archive.json`": [settings.FORMAT],
        "`packs/`": [pack.VERSION], "`manifest/`": [manifest.VERSION], "`lost/`": [losses.VERSION],
        "`index/`": [*index_file.VERSIONS], "`parity/`": [parity.VERSION], "`keys/`": [key_files.VERSION],
        "journal of the eviction hook": [segment.VERSION], "calibration of KV": [calibration.VERSION],
        "file of KV": [kv_file.VERSION], "slot of llama-server": [int(slot_keeper.FORMAT.rpartition(" ")[2])],
        "receipt of the nightly job": [receipt.VERSION], "`hold/`, `audit/`": sorted({hold.VERSION, audit.VERSION}),
    }
    assert {name: [int(n) for n in told.split(",")] for name, told in rows} == read


def test_one_text_says_what_is_read_and_what_to_do() -> None:
    readers = Readers("the thing", {4: str, 6: bytes})
    assert readers[4] is str and 6 in readers and 5 not in readers
    for version, told in {
        5: "the thing is of version 5, this pltz reads 4 and 6: use a newer pltz",
        None: "the thing is of version None, this pltz reads 4 and 6: use a newer pltz",
    }.items():
        with pytest.raises(VersionError) as refused:
            _ = readers[version]
        assert str(refused.value) == told
