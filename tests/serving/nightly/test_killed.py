"""A run that is killed at any point and run again gives the same sessions, versions and order as one that was not.

Two runs at once are tested too.
"""

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pltz.serving.nightly import freeze
from tests.serving.nightly.conftest import Nightly, chat, lines

CALLS = ("write_new", "sync_file", "link", "unlink", "sync_directory")

RUN = """
import sys
from pltz.serving.nightly import config, freeze, job
freeze.BATCH_SESSIONS = 8
print(job.run(config.load(sys.argv[1]))["exit_code"])
"""

KILLED_AT = """
import os
import signal
import sys
from pltz.archive.storage.disk import OsDisk

left = int(sys.argv[2])

def counted(real):
    def call(*args):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    return call

for name in sys.argv[3:]:
    setattr(OsDisk, name, counted(getattr(OsDisk, name)))
"""


@pytest.fixture
def logs(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> Nightly:
    """Names that come again with more turns, a bad line, lines called by their place, and a retention rule."""
    monkeypatch.setattr(freeze, "BATCH_SESSIONS", 8)
    nightly.sources += '[[source]]\nkind = "jsonl"\nname = "places"\npath = "places"\ntags = { p = "y" }\n'
    nightly.rest = '[[retention]]\nkeep_last = 1\ntags = { p = "y" }\n[collect]\ngrace = "7d"\n'
    for turns in (1, 2, 3):
        data = lines(chat(n, turns) for n in range(6))
        nightly.write(f"chats/{turns}.jsonl", data + (b"not JSON\n" if turns == 2 else b""))
    nightly.write("places/a.jsonl", lines(map(chat, range(9))))
    return nightly


def copy(nightly: Nightly, name: str) -> Nightly:
    """Copy the job into a folder of its own."""
    root = nightly.root.with_name(f"{nightly.root.name}-{name}")
    shutil.copytree(nightly.root, root)
    other = object.__new__(type(nightly))
    other.__dict__.update(vars(nightly), root=root)
    return other


def killed_at(call: int, file: Path) -> bool:
    """Run a job in a process that is killed before system call number ``call``. Return False where it made fewer."""
    command = [sys.executable, "-c", KILLED_AT + RUN, str(file), str(call), *CALLS]
    process = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=300, check=False)
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def check_kills(logs: Nightly, start: int, stride: int) -> int:
    """Kill at every ``stride``th call, and return the number of kills."""
    whole = copy(logs, "whole")
    whole.run()
    wanted = whole.content()
    assert sorted(map(len, wanted.values())) == [1] * 9 + [3] * 6
    call = start
    while True:
        hurt = copy(logs, str(call))
        if not killed_at(call, hurt.file):
            return (call - start) // stride
        assert hurt.run()["exit_code"] == 5 and hurt.content() == wanted, f"killed before call {call}"
        again = hurt.run()["totals"]
        assert (again["frozen"], again["known"], again["refused"]) == (0, 27, 1)
        assert not list((hurt.root / "state/pending").iterdir()) and not list((hurt.root / "state/tmp").iterdir())
        shutil.rmtree(hurt.root)
        call += stride


def test_killed_and_run_again_it_ends_the_same(logs: Nightly) -> None:
    assert check_kills(logs, 23, 67) >= 2


@pytest.mark.slow
def test_killed_at_any_time(logs: Nightly) -> None:
    """Kill real processes with SIGKILL at random times."""
    whole = copy(logs, "whole")
    whole.run()
    dice = random.Random(6)
    file, kills, limit = str(logs.file), 0, 0.1
    for _ in range(40):
        process = subprocess.Popen([sys.executable, "-c", RUN, file], stdout=subprocess.PIPE, text=True)
        try:
            out, _ = process.communicate(timeout=limit * (1 + dice.random()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills, limit = kills + 1, limit * 1.35
            continue
        if process.returncode == 0 and out.strip() == "5":
            break
    else:
        raise AssertionError("it never came to its end")
    assert kills and logs.content() == whole.content()


def test_two_runs_at_once_do_no_harm(logs: Nightly) -> None:
    """Run two jobs: one works and the other leaves, or finds nothing to do if the first is already finished."""
    whole = copy(logs, "whole")
    whole.run()
    command = [sys.executable, "-c", RUN, str(logs.file)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [process.communicate(timeout=300) for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 1]), results
    if codes == [0, 1]:
        assert any("another run is going on" in err for _, err in results)
    assert logs.content() == whole.content()


def test_a_receipt_that_is_damaged_costs_a_look_and_no_version(nightly: Nightly) -> None:
    nightly.write("chats/a.jsonl", lines(map(chat, range(4))))
    nightly.run()
    [receipt] = (nightly.root / "state/receipts").iterdir()
    data = bytearray(receipt.read_bytes())
    data[40] ^= 1
    receipt.write_bytes(data)
    report = nightly.run()
    assert report["totals"]["unchanged"] == 4 and report["damaged_receipts"] == [receipt.name]
    assert all(len(versions) == 1 for versions in nightly.content().values())
    assert json.loads(Path(report["report"]).read_bytes())["damaged_receipts"] == [receipt.name]
    assert nightly.counts() == (0, 4, 0, 0) and not receipt.exists()


def test_a_receipt_of_a_newer_version_is_left(nightly: Nightly) -> None:
    nightly.write("chats/a.jsonl", lines(map(chat, range(4))))
    nightly.run()
    [receipt] = (nightly.root / "state/receipts").iterdir()
    newer = receipt.with_name("a" * 32)
    newer.write_bytes(b"PLTn\x03" + receipt.read_bytes()[5:])
    report = nightly.run()
    assert report["totals"]["known"] == 4 and report["damaged_receipts"] == [] and newer.exists() and receipt.exists()
