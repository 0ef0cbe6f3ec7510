"""The kernel for AMX with its tiles in plain C (native/tiles.h), for machines with AVX-512 but no AMX.

The wide shapes and the repetitions with many threads are left out: a tile in C takes a thousand times longer.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pltz.plt_codec.engines.native.coder import available, kernels
from tests.compiled import compiled, preprocessed

ROOT = Path(__file__).parents[4]
SOURCES = sorted(path for path in (ROOT / "plt_codec" / "engines" / "native").glob("*.c") if path.stem != "module")
FLAGS = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-DPLTZ_TILES_IN_C"]


@pytest.mark.slow
@pytest.mark.skipif(
    not available() or "vnni" not in kernels() or "amx" in kernels(),
    reason="needs the compiled engine and AVX-512; with AMX, test_coder.py runs the kernel itself",
)
def test_the_amx_kernel_codes_as_the_reference_does() -> None:
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        pytest.skip("needs a C compiler")
    command = [compiler, *FLAGS]

    def make(part: Path) -> None:
        subprocess.run([*command, *map(str, SOURCES), "-o", str(part), "-lm"], check=True, timeout=300)

    library = compiled(".so", command, preprocessed(command, SOURCES), make)
    environment = {**os.environ, "PLTZ_NATIVE": str(library), "OMP_NUM_THREADS": "1"}
    asked = [sys.executable, "-c", "from pltz.plt_codec.engines.native.coder import kernels; print(kernels()[0])"]
    best = subprocess.run(asked, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if best.strip() != "amx":
        pytest.skip("needs the byte permutations of AVX-512 too")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command += ["-k", "amx and not wide and not threads_and_company", str(Path(__file__).with_name("test_coder.py"))]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
