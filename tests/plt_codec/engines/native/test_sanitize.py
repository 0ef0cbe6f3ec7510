"""AddressSanitizer and UndefinedBehaviorSanitizer on the compiled engine: sanitize.sh, run as a test.

The wide shapes and the repetitions with many threads are left out: they cost most of the time and run the same code.
So are the oracle, which is Python, and the largest tests of the plain kernel.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiled import compiled, preprocessed

SCRIPT = Path(__file__).with_name("sanitize.sh")
ENGINE = Path(__file__).parents[4] / "plt_codec" / "engines" / "native"


pytestmark = [pytest.mark.slow, pytest.mark.seldom("plt_codec/engines/native/*", "plt_codec/engines/*.py")]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, sanitizers: tuple[str, str]) -> Path:
    """Compile the engine with the sanitizers, where no run before this one did."""
    folder = tmp_path_factory.mktemp("sanitized")

    def make(part: Path) -> None:
        done = sanitize(folder, sanitizers[0], "--build")
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.copy(folder / "_native.so", part)

    sources = sorted(file for file in ENGINE.glob("*.c") if file.stem != "module")
    text = SCRIPT.read_text() + preprocessed([sanitizers[0], "-std=c11"], sources)
    library = compiled(".so", [sanitizers[0]], text, make)
    shutil.copy(library, folder / "_native.so")
    return folder


def sanitize(build: Path, compiler: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["sh", str(SCRIPT), *words], env={**os.environ, "PATH": path, "CC": compiler, "SANITIZED": str(build)},
        capture_output=True, text=True, timeout=600, check=False,
    )


def test_no_sanitizer_complains(build: Path, sanitizers: tuple[str, str]) -> None:
    # -s: what a sanitizer says before it ends the process would be lost in the capture
    left_out = ("wide", "threads_and_company", "oracle", "more_sessions", "small-plain")
    chosen = " and ".join(f"not {name}" for name in left_out)
    done = sanitize(build, sanitizers[0], "-s", "-p", "no:xdist", "-k", chosen)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
