"""The command line as a process: closed or full streams, signals, warnings. It never prints a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pltz.plt_codec.container.file import pack
from pltz.plt_codec.container.frame import Frame, Kind, Method, content_check
from pltz.plt_codec.container.header import Header

MAIN = "from pltz.cli.main import main; main()"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a .pltz file that can be inspected without a bundle."""
    path = tmp_path / "a.pltz"
    frame = Frame(Kind.TEXT, Method.BYTES, 2, content_check(Kind.TEXT, Method.BYTES, 2, b"hi"), b"hi")
    path.write_bytes(pack(Header(bytes(16)), [frame]))
    return path


def shell(line: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run ``line`` under sh. ``$0`` in it is pltz, ``$1`` and so on are the words."""
    command = ["sh", "-c", line.replace("pltz", '"$0" -c "$1"'), sys.executable, MAIN, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.mark.parametrize(("line", "code", "said"), [
    ('pltz inspect "$2" >&-', 1, "error: stdout: Bad file descriptor\n"),
    ("pltz inspect - <&-", 2, "error: cannot read stdin: Bad file descriptor\n"),
    ("pltz --help >&-", 1, "error: Bad file descriptor\n"), ('pltz inspect "$2" >&- 2>&- <&-', 1, ""),
    ('pltz inspect "$2".no 2>&-', 2, ""), ('pltz inspect "$2" 2>&- >/dev/null', 0, ""),
    ('pltz inspect "$2" <&- >/dev/null', 0, ""),
])
def test_closed_streams(line: str, code: int, said: str, file: Path) -> None:
    done = shell(line, file)
    assert (done.returncode, done.stderr) == (code, said)


def test_as_a_module(file: Path) -> None:
    """Check that `python -m pltz` is the script `pltz`, also by name in messages."""
    done = subprocess.run(
        [sys.executable, "-m", "pltz", "inspect", f"{file}.no"], capture_output=True, text=True, timeout=180,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "") and done.stderr == shell('pltz inspect "$2".no', file).stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_stderr_hides_no_exit_code(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])
    assert shell('pltz inspect "$2" 2>/dev/full', file).returncode == 3


def test_a_reader_that_goes_away(file: Path) -> None:
    done = shell('pltz inspect "$2" | true', file)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_by_name(file: Path) -> None:
    os.mkfifo(pipe := file.with_name("pipe"))
    done = shell('cat "$2" > "$3" & pltz inspect "$3"', file, pipe)
    assert done.returncode == 0 and "2 of frames" in done.stdout


SLOW = """
import signal, sys, time, click
from pltz.cli.ui import process
from pltz.cli.ui.groups import Command, RootGroup
from pltz.cli.ui.output import Output

def chunks():
    yield b"half"
    print("begun", flush=True)
    time.sleep(60)

@click.command(cls=Command)
def slow():
    Output(sys.argv[1], force=True).write(chunks())

for number in signal.SIGTERM, signal.SIGHUP:
    signal.signal(number, signal.SIG_DFL)  # what a user's shell hands on
signal.signal(signal.SIGINT, signal.default_int_handler)
process.prepare()
RootGroup(lazy={"slow": "__main__:slow"})(["slow"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_old_file_and_nothing_else(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    command = [sys.executable, "-c", SLOW, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "begun\n" and len(os.listdir(tmp_path)) == 2
        process.send_signal(number)
        said = process.communicate(timeout=180)[1]
    assert (process.returncode, said.strip()) == (1, "error: interrupted, nothing was written")
    assert os.listdir(tmp_path) == ["a"] and path.read_bytes() == b"old"


INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.{}); import time; time.sleep(60)"


@pytest.mark.parametrize(
    "module", ["click", "zstandard"]
)  # the first module imported, and one that only a command needs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_load_is_quiet(module: str, number: signal.Signals, file: Path, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(INTERRUPTED.format(number.name))
    here = "import sys, signal; sys.path.insert(0, sys.argv.pop(1)); "
    here += "signal.signal(signal.SIGINT, signal.default_int_handler); "  # the parent process may ignore it
    command = [sys.executable, "-c", here + MAIN, str(tmp_path), "inspect", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    said = ("", "error: interrupted", "error: stopped, nothing was done")
    assert done.returncode == 1 and done.stderr.strip() in said and done.stdout == ""


def test_a_warning_is_one_line() -> None:
    code = "import warnings; from pltz.cli.ui import process; process.prepare(); warnings.warn('slow\\n here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: slow here\n"
