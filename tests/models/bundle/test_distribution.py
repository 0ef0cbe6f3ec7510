"""What the wheel of pltz holds, and pltz-base, the distribution of the bundle `base` (distributions/base)."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from pltz.models.bundle.locations import GROUP

ROOT = Path(__file__).resolve().parents[3]
BASE = ROOT / "distributions/base"
MAX_WHEEL = 48_000_000  # bytes


def test_the_wheel_holds_mini_nano_and_the_toy_target_alone() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    taken = {path for pattern in patterns["pltz.models"] for path in (ROOT / "models").glob(pattern)}
    assert {path.parent.relative_to(ROOT / "models").as_posix() for path in taken} <= {
        ".",  # __init__.pyi
        "bundles/mini",
        "bundles/nano",
        "targets/mini-llama",
    }
    assert not any(Path("bundles/base/bundle.json").match(pattern) for pattern in patterns["pltz.models"])
    assert sum(path.stat().st_size for path in taken) < MAX_WHEEL - 4_000_000  # code and samples take the rest


def test_the_entry_point_names_the_folder() -> None:
    project = tomllib.loads((BASE / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {GROUP: {"base": "pltz_base:FOLDER"}}
    done = subprocess.run(
        [sys.executable, "-c", "import pltz_base; print(pltz_base.FOLDER.resolve())"], cwd=BASE, check=True,
        capture_output=True, text=True,
    )
    assert Path(done.stdout.strip()) == ROOT / "models/bundles/base"


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "models/bundles/base/bundle.json").is_file(), reason="no bundle base in this checkout")
def test_pltz_base_is_built_and_found(tmp_path: Path) -> None:
    """Build the wheel from a copy of the checkout's files, unpack it as pip does, and look for the bundle."""
    (tmp_path / "distributions").mkdir()
    (tmp_path / "models/bundles").mkdir(parents=True)
    shutil.copytree(BASE, tmp_path / "distributions/base", symlinks=True, ignore=shutil.ignore_patterns("build"))
    (tmp_path / "models/bundles/base").symlink_to(ROOT / "models/bundles/base")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, tmp_path, tmp_path / "distributions/base"], check=True, capture_output=True)
    [wheel] = tmp_path.glob("pltz_base-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from pltz.models.bundle import locations; locations.EMBEDDED = Path(sys.argv[1]) / 'none'\n"
        "found = locations.by_name('base'); folder = found.open()\n"
        "print(found.source, len(folder.files))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site")], check=True, capture_output=True, text=True
    )
    assert done.stdout == "pltz-base 0.1.0 10\n"
