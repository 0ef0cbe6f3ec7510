"""Where bundles are found by name and by fingerprint (models/bundle/locations.py)."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pltz.benchmarks.random_weights import random_weights
from pltz.models.bundle import locations
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.plt_codec.errors import BundleMismatch, ModelError, UsageError
from tests.failing import raising

Make = Callable[..., Path]


@pytest.fixture
def make(tiny_tokenizer_json: Callable[[int], bytes]) -> Make:
    """Write a tiny bundle; another seed is another bundle."""

    def write(folder: Path, seed: int) -> Path:
        write_bundle(folder, folder.name, random_weights(seed, vocab=512), tiny_tokenizer_json(512), b"", {})
        return folder

    return write


@pytest.fixture(autouse=True)
def nothing_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without embedded, installed and added bundles."""
    monkeypatch.setattr(locations, "EMBEDDED", tmp_path / "embedded")
    monkeypatch.setattr(locations, "GROUP", "pltz.bundles.of.the.tests")
    monkeypatch.setenv("PLTZ_BUNDLES", str(tmp_path / "user"))


def install(site: Path, name: str, code: str) -> None:
    """Lay out an installed distribution with one bundle, as pip does."""
    info = site / f"pltz_{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pltz-{name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[pltz.bundles.of.the.tests]\n{name} = pltz_{name}_:FOLDER\n")
    (site / f"pltz_{name}_.py").write_text(code)


def test_embedded_installed_and_added_are_found(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "embedded/one", 1)
    make(tmp_path / "site/two", 2)
    make(tmp_path / "user/three", 3)
    install(tmp_path / "site", "two", "from pathlib import Path\nFOLDER = Path(__file__).parent / 'two'\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert [(each.name, each.source) for each in locations.locations()] == [
        ("one", "pltz"), ("two", "pltz-two 1.2"), ("three", "user"),
    ]
    assert Bundle.names() == ["one", "three", "two"]
    for name in Bundle.names():
        assert Bundle.load(name).name == name and Bundle.find(Bundle.load(name).id).name == name
    monkeypatch.delitem(sys.modules, "pltz_two_")


def test_the_first_of_one_name_is_taken(make: Make, tmp_path: Path) -> None:
    first, second = make(tmp_path / "embedded/one", 1), make(tmp_path / "user/one", 2)
    assert [each.folder for each in locations.locations()] == [first]
    with pytest.raises(BundleMismatch, match="not here"):
        Bundle.find(Bundle.load(second).id)


def test_distributions_are_listed_only_when_needed(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_entry_points", raising(AssertionError("looked at the installed distributions")))
    bundle = Bundle.load(make(tmp_path / "embedded/one", 1))
    assert Bundle.load("one").id == Bundle.find(bundle.id).id == bundle.id
    with pytest.raises(AssertionError, match="looked"):
        Bundle.load("two")


@pytest.mark.parametrize("code", ["", "raise OSError('no disk')", "FOLDER = 5"])
def test_a_broken_distribution_is_passed_over(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    make(tmp_path / "user/three", 3)
    install(tmp_path / "site", "broken", code)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "pltz_broken_", raising=False)
    locations._entry_points.cache_clear()
    with pytest.warns(UserWarning, match=r"pltz-broken 1.2 cannot be found .* reinstall"):
        assert Bundle.names() == ["three"]
    monkeypatch.delitem(sys.modules, "pltz_broken_", raising=False)


def test_an_unreadable_bundle_hides_no_other(make: Make, tmp_path: Path) -> None:
    wanted = Bundle.load(make(tmp_path / "user/b", 3)).id
    make(tmp_path / "user/a", 2).joinpath("bundle.json").write_text("{")
    assert Bundle.find(wanted).name == "b"
    with pytest.raises(BundleMismatch, match="a, which cannot be read"):
        Bundle.find(b"\0" * 16)
    with pytest.raises(ModelError, match=r"bundle\.json"):
        Bundle.load("a")


def test_a_path_is_no_name(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "user/one", 1)
    here = make(tmp_path / "one", 2)
    monkeypatch.chdir(tmp_path)
    assert Bundle.load("one").path == tmp_path / "user/one" and Bundle.load("./one").path == here
    with pytest.raises(UsageError, match="bundle add"):
        Bundle.load("..")


def test_another_bundle_at_the_same_place_is_loaded_anew(make: Make, tmp_path: Path) -> None:
    before = Bundle.load(make(tmp_path / "user/one", 1)).id
    make(tmp_path / "user/one", 2)
    assert Bundle.load("one").id != before


def test_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert locations.user_folder() == Path(os.environ["PLTZ_BUNDLES"])
    monkeypatch.delenv("PLTZ_BUNDLES")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert locations.user_folder() == Path("/data/pltz/bundles")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert locations.user_folder() == Path("/home/x/.local/share/pltz/bundles")
