"""The kernels of the forms and of the pool under AddressSanitizer and UndefinedBehaviorSanitizer, by emulation.

It stands in for compute-sanitizer's memcheck where there is no GPU: tensors and shared memory lie on the heap, with
guards around them. It knows nothing of races: the emulation runs one thread at a time.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kv.engines.test_cuda import FLAGS
from tests.plt_codec.engines.cuda import emulate
from tests.seldom import ALL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not emulate.available(), reason="the emulation needs g++ on x86-64 Linux"),
    pytest.mark.seldom("kv/engines/*", "kv/pool/*", "plt_codec/engines/cuda/*", "tests/kv/pool/*"),
]
ROOT = Path(__file__).parents[3]
# Threads are fibers, so the sanitizer's guards on stacks are left out.
OPTIONS = "-g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all --param=asan-stack=0"
FORMS = "warp or spread or rare or damaged or fixed or cannot_be or no_ids or pieces or 5-1-8"
POOL = "copied or unpacked and not launch0 and not launch2 and not launch5"  # the indices of these three are in others
FILES = "tests/kv/engines/test_cuda.py", "tests/kv/pool/test_gpu_kernels.py"
BEYOND = """
import sys

import torch

from pltz.kv.engines import cuda
from tests.plt_codec.engines.cuda import emulate
from tests.seldom import ALL

emulation = emulate.Emulation({}, sys.argv[1].split(), text=cuda.source())
kernels = cuda.Kernels(emulate.EmulatedDevice(emulation))
q, row = torch.ones(3, 40, dtype=torch.int16), torch.ones(40)
kernels.add_residual(row.repeat(3, 1), row, q, row[:3].clone(), torch.empty(2, 40), torch.zeros(1, dtype=torch.int32))
"""


def run(asan_library: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the sanitizers."""
    asan = {"LD_PRELOAD": asan_library, "ASAN_OPTIONS": "detect_leaks=0", FLAGS: OPTIONS, ALL: "1"}
    environment = {**os.environ, **asan, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_sanitizers_find_what_is_out_of_bounds(sanitizers: tuple[str, str]) -> None:
    beyond = run(sanitizers[1], "-c", BEYOND, OPTIONS)
    assert "heap-buffer-overflow" in beyond.stderr, beyond.stderr[-4000:]  # a row too few is found out


def test_no_sanitizer_complains(tmp_path: Path, sanitizers: tuple[str, str]) -> None:
    options = ["-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path}"]
    done = run(sanitizers[1], "-m", "pytest", *FILES, *options, "-k", f"{FORMS} or {POOL}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
