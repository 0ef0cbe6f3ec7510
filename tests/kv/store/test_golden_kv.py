"""Golden files of KV are read, and written again byte for byte; later ones are refused."""

import shutil
from pathlib import Path

import pytest
import torch
import xxhash

from pltz.kv.memory.remembered import Remembered, name_of
from pltz.kv.pool.row_form import RowForm
from pltz.kv.port.codec import Span
from pltz.kv.store.kv_file import FORMAT, VERSION
from pltz.kv.store.kv_folder import AGENT, KVFolder
from pltz.kv.store.store import centred, space_of
from pltz.kv.store.trie import names_of, root_of
from pltz.plt_codec.errors import VersionError
from tests.kv.store.golden import FOLDER, maker

FILES = FOLDER / f"version-{VERSION}"
NAMES = sorted(str(path.relative_to(FILES)) for path in FILES.rglob("*.safetensors"))


def test_the_same_bytes_are_written_again(tmp_path: Path) -> None:
    maker().write(tmp_path)
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors"))
    assert len(NAMES) == 8 and written == NAMES
    for name in NAMES:
        assert (tmp_path / name).read_bytes() == (FILES / name).read_bytes(), name


@pytest.mark.parametrize("kind", ["raw", "q8", "q4"])
def test_golden_files_are_read(kind: str, tmp_path: Path) -> None:
    made = maker()
    shutil.copytree(FILES, tmp_path / "kv", copy_function=shutil.copy)
    pages = made.form(kind)
    folder = KVFolder(tmp_path / "kv", space_of(made.TARGET, pages), 1 << 20)
    assert [file.label for file in folder.lasting(AGENT)] == [made.AGENT]
    file = folder.get(name_of(made.AGENT), AGENT)
    assert file is not None
    memory = Remembered.of_file(file, pages, 16, 1 << 20)
    assert (memory.text, memory.ids.tolist(), memory.ends[3]) == (made.TEXT, made.IDS, -1)
    kept = centred(folder, pages).centre
    assert kept is None if pages.centre is None else kept is not None and torch.equal(kept, pages.centre)
    names = names_of(root_of(made.TENANT), range(32), 16)
    found = folder.find(names, 1, [RowForm(pages).name])
    assert found is not None and found[1] == 1 and found[0].first == 0
    run = folder.read(names[-1], found[0].form)
    assert run is not None
    RowForm(pages).check(run.parts, 32)
    kv = RowForm(pages).decode(run.parts, Span(run.head["ids"].numpy(), 0))
    assert bool(torch.isfinite(kv).all()) and torch.equal(kv[:, :, :, : pages.sinks], run.parts["kv.sinks"])


def test_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    made = maker()
    pages = made.form("raw")
    folder = KVFolder(tmp_path, space_of(made.TARGET, pages), 1 << 20)
    path = folder.path(name_of(made.AGENT), AGENT)
    later = (FILES / path.relative_to(tmp_path)).read_bytes().replace(FORMAT.encode(), FORMAT[:-1].encode() + b"9")
    end = 8 + int.from_bytes(later[:8], "little")
    path.write_bytes(later[:end] + xxhash.xxh3_128_digest(later[:end]) + later[end + 16 :])
    with pytest.raises(VersionError, match="use a newer pltz"):
        folder.get(name_of(made.AGENT), AGENT)
