"""The wheel works outside the checkout: the steps of the Dockerfile, in a clean environment without a container.

The environment is lent the packages of the tests, without pltz itself. So nothing is downloaded, and nothing of the
checkout can be imported.
"""

import fnmatch
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from pltz.coding.log import compiled
from tests.documents import ROOT

pytestmark = pytest.mark.slow
BUILT = "pyproject.toml", "setup.py", "MANIFEST.in", "Dockerfile", ".dockerignore", "constraints.txt"
MAX_WHEEL = 48_000_000  # bytes; package indexes take 100 MB
EXTRAS = "thaw,s3,serve,postgres"


class Image:
    """Hold the results of the Dockerfile: ``root``, with ``src``, ``wheels``, ``data`` and an environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / "environment/bin/python"
        venv = [sys.executable, "-m", "venv", "--without-pip", str(root / "environment")]
        subprocess.run(venv, check=True)
        lent = root / "lent"
        lent.mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not fnmatch.fnmatch(path.name.lower(), "*pltz*"):
                (lent / path.name).symlink_to(path)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (root / f"environment/lib/{version}/site-packages/lent.pth").write_text(f"{lent}\n")
        ignored = (ROOT / ".dockerignore").read_text().split()
        shutil.copytree(ROOT, root / "src", symlinks=True, ignore=lambda at, names: _out(at, names, ignored))

    def run(self, command: str, folder: str) -> str:
        """Run a shell command of the Dockerfile, with its absolute paths in this image. Return what it prints."""
        inside = re.sub(r"(?<=\s)/(wheels|data)\b", rf"{self.root}/\1", command)
        environment = {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.root / "home"),
            "EXTRAS": EXTRAS,
            "PLTZ_CFLAGS": "-O1",  # half the time of the compiler
            "PIP_NO_INDEX": "1",  # all that the wheel needs is there, or the step fails
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as: no isolation
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        words = ["bash", "-e", "-o", "pipefail", "-c", inside]
        done = subprocess.run(
            words, cwd=self.root / folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{inside}\n{done.stdout}{done.stderr}"
        return done.stdout


def _out(at: str, names: list[str], ignored: list[str]) -> set[str]:
    """Return the names in a folder that .dockerignore leaves out."""
    where = Path(at).relative_to(ROOT)
    found = set()
    for pattern in ignored:
        anywhere = pattern.startswith("**/")
        found |= {
            name for name in names
            if fnmatch.fnmatch(name if anywhere else (where / name).as_posix(), pattern.removeprefix("**/"))
        }
    return found


def steps() -> list[str]:
    """Return the steps of the Dockerfile that are not about users or containers; the first builds the wheel."""
    found = re.findall(r"^RUN (.*(?:\\\n.*)*)", (ROOT / "Dockerfile").read_text("utf8"), re.MULTILINE)
    assert len(found) >= 3 and "pip wheel" in found[0]
    return [step.replace("&& chown 1000:1000 /data", "") for step in found]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Build the wheel."""
    made = Image(tmp_path_factory.mktemp("image"))
    (made.root / "home").mkdir()
    made.run(steps()[0], "src")
    return made


@pytest.fixture(scope="module")
def image(built: Image) -> Image:
    """Run the other steps: install the wheel, and try it."""
    for step in steps()[1:]:
        built.run(step, "home")
    return built


@pytest.mark.seldom(*BUILT)
def test_the_wheel_holds_what_it_should(built: Image) -> None:
    [wheel] = (built.root / "wheels").glob("pltz-*.whl")
    assert wheel.stat().st_size < MAX_WHEEL
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(re.fullmatch(r"pltz/plt_codec/engines/native/_native.*\.so", name) for name in names)
    log = re.escape(f"pltz/coding/log/{compiled.folder().name}/")
    assert all(any(re.match(log + name + r"\..*so", each) for each in names) for name in compiled.MODULES)
    assert {name.rpartition("licenses/")[2] for name in names if "/licenses/" in name} >= {
        "LICENSE", "models/bundles/mini/CARD.md", "models/bundles/nano/CARD.md", "datasets/sample/LICENSES.md",
    }
    assert [name for name in names if name.endswith((".c", ".pyc"))] == []
    assert [name for name in names if re.search("/bundles/base/|/benchmarks/|/experiments/", name)] == []


@pytest.mark.seldom(*BUILT)
def test_pltz_is_that_of_the_wheel(image: Image) -> None:
    code = (
        "import pltz, pltz.plt_codec.engines.native._native as engine, pltz.coding.log.walk as walk;"
        "print(pltz.__file__, engine.__file__, walk.__file__)"
    )
    files = image.run(f"python -c '{code}'", "home").split()
    assert len(files) == 3 and files[2].endswith(".so")
    assert all(file.startswith(str(image.root / "environment")) for file in files)


@pytest.mark.seldom(*BUILT)
def test_the_demo_runs(image: Image) -> None:
    done = json.loads(image.run("pltz demo --sessions 2 --thaws 1 --json", "home"))
    assert done["sessions"] == 2


@pytest.mark.seldom(*BUILT)
def test_a_session_is_archived_and_thawed(image: Image) -> None:
    chat = json.dumps({"messages": [{"role": "user", "content": "Where is my bicycle?"}]})
    image.run(f"echo '{chat}' > chats.jsonl && pltz archive init -r /data/cold", "home")
    image.run("pltz archive put -r /data/cold chats.jsonl", "home")
    done = json.loads(image.run("pltz thaw --archive /data/cold chats/0 --json", "home"))
    assert done["tokens"] > 0


def test_workflows_are_workflows() -> None:
    found = sorted(str(path) for path in (ROOT / ".github/workflows").glob("*.yml"))
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *found]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert len(found) == 3 and done.returncode == 0, done.stdout


def test_the_bill_of_materials_has_what_pltz_needs_and_no_more() -> None:
    script = runpy.run_path(str(ROOT / "distributions/sbom.py"))
    plain = script["needed_by"]("pltz")
    assert {"pltz", "numpy"} <= plain
    assert not {"torch", "transformers", "constriction", "pytest"} & plain, "those of the extras"
    needed = script["needed_by"]("pltz[thaw]")
    assert {"pltz", "torch", "numpy", "typing-extensions"} <= needed
    assert not {"pytest", "ruff", "ray", "psycopg"} & needed, "those of other extras"
    names = ("pltz", "numpy", "pytest")
    bill = {
        "bomFormat": "CycloneDX",
        "components": [{"name": name, "bom-ref": f"{name}==1"} for name in names],
        "dependencies": [{"ref": "pltz==1", "dependsOn": ["numpy==1", "pytest==1"]}, {"ref": "numpy==1"}],
    }
    made = script["of_pltz"](bill, needed)
    found = {component["name"] for component in made["components"]}
    assert found == {"pltz", "numpy", "bundle mini", "bundle nano", "target mini-llama", "sample sessions"}
    assert made["dependencies"][0]["dependsOn"][0] == "numpy==1" and len(made["dependencies"][0]["dependsOn"]) == 5
    assert all((ROOT / part["bom-ref"]).is_dir() for part in made["components"] if "licenses" in part)
