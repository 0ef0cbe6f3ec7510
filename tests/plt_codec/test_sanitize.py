"""AddressSanitizer and UndefinedBehaviorSanitizer on the compiled engine: sanitize.sh, run as a test.

The wide shapes and the repetitions with many threads are left out: they cost most of the time and run the same code.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("sanitize.sh")


def compiler() -> str:
    """The C compiler, where it can build and find the sanitizers' libraries; else the test is skipped with the reason."""
    found = shutil.which(os.environ.get("CC", "gcc"))
    if sys.platform != "linux" or found is None:
        pytest.skip("the sanitizers need Linux and gcc")
    for library in ("libasan.so", "libubsan.so"):
        asked = [found, f"-print-file-name={library}"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        if not os.path.isabs(said):
            pytest.skip(f"{found} comes without {library}")
    return found


@pytest.mark.slow
def test_no_sanitizer_complains() -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # -s: what a sanitizer says before it ends the process would be lost in the capture
    command = ["sh", str(SCRIPT), "-s", "-p", "no:xdist", "-k", "not wide and not threads_and_company"]
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path, "CC": compiler()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
