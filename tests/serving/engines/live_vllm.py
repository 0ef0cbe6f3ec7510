"""Programs in an environment with vLLM and what pltz imports: PLTZ_VLLM_PYTHON=/path/to/bin/python, pytest -m vllm."""

import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("PLTZ_VLLM_PYTHON", "")
ROOT = Path(__file__).parents[3]
LONGEST = 1800  # seconds of a program: 40 alone, nearly all of them imports, and 520 were seen beside other work

needs_vllm = pytest.mark.skipif(
    not os.path.isfile(PYTHON), reason="needs vLLM: PLTZ_VLLM_PYTHON=/path/to/its/bin/python"
)


def run_in_vllm(module: str, *arguments: Path | str) -> str:
    """Run a module of these tests in vLLM's environment, and return what it and the servers printed.

    One thread: several that share cores with other work wait for each other at every operation.
    """
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    environment = {**os.environ, **quiet, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [PYTHON, "-m", f"tests.serving.engines.{module}", *map(str, arguments)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout + done.stderr
