"""AddressSanitizer and UndefinedBehaviorSanitizer on the compiled engine: sanitize.sh, run as a test.

The wide shapes and the repetitions with many threads are left out: they cost most of the time and run the same code.
So are the oracle, which is Python, and the largest tests of the plain kernel.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("sanitize.sh")


@pytest.mark.slow
def test_no_sanitizer_complains(sanitizers: tuple[str, str]) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # -s: what a sanitizer says before it ends the process would be lost in the capture
    left_out = ("wide", "threads_and_company", "oracle", "more_sessions", "small-plain")
    command = ["sh", str(SCRIPT), "-s", "-p", "no:xdist", "-k", " and ".join(f"not {name}" for name in left_out)]
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path, "CC": sanitizers[0]},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
