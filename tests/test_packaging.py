"""The packages in pyproject.toml match the tree. A folder left out would be missing only where pltz is installed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_imports import MAY_IMPORT

ROOT = Path(__file__).resolve().parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["tool"]["setuptools"]
APART_ROOMS = {"benchmarks", "experiments"}
FOLDERS = sorted(MAY_IMPORT.keys() - APART_ROOMS)
DATA = {".json", ".toml", ".zst", ".safetensors", ".jsonl", ".table", ".html", ".cu", ".cuh"}  # read when pltz runs
APART = ROOT / "models/bundles/base"  # not in the wheel of pltz: distributions/base


def test_every_folder_with_code_is_a_package() -> None:
    found = {path.parent.relative_to(ROOT) for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    assert {Path(SETUP["package-dir"].get(package, package)) for package in SETUP["packages"]} == found | {Path("pltz")}


def test_rooms_apart_are_not_in_the_wheel() -> None:
    packages = [*SETUP["packages"], *SETUP["package-dir"], *SETUP["package-data"]]
    assert not [name for name in packages for room in APART_ROOMS if room in name]


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_code_reads_is_package_data(folder: str) -> None:
    homes = {Path(place): package for package, place in SETUP["package-dir"].items()}
    packed = {
        path for home, package in homes.items() for pattern in SETUP["package-data"].get(package, [])
        for path in (ROOT / home).glob(pattern)
    }
    data = {path for path in (ROOT / folder).rglob("*") if path.suffix in DATA and path.is_file()}
    assert {path for path in data - packed if "results" not in path.parts and APART not in path.parents} == set()


def test_base_is_a_distribution_of_its_own() -> None:
    assert (ROOT / "distributions/base/pltz_base/bundle").resolve() == APART


def test_without_mypyc_the_sources_are_installed_and_a_warning_says_so() -> None:
    code = "import runpy, sys; sys.modules['mypyc.build'] = None; runpy.run_path('setup.py')"
    words = [sys.executable, "-c", code, "build_ext", "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "warning: logs will take twice the time" in done.stderr, done.stderr
