"""Real processes over a directory and a bucket: writers next to a collector, and writers killed with SIGKILL."""

import signal
import subprocess
import sys
import time

import numpy as np

from pltz.coding.codecs.codec import BytesCodec
from tests.archive.kit import NewSession, TowerArchive

WRITER = """
import sys
import numpy as np
from tests.archive.towers import TowerArchive
from pltz.coding.codecs.codec import BytesCodec
from pltz.archive.errors import ArchiveError, StoreError
from pltz.archive.writing.new_session import NewSession
place, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
archive = TowerArchive.open(place, [BytesCodec()])
for n in range(count):
    prompt, own = np.arange(50), np.frombuffer(b"writer %d" % (n // 3), np.uint8)
    turn = np.frombuffer(who.encode() + b" %d" % n, np.uint8)
    try:
        archive.put([NewSession(f"{who}-{n // 2}", [prompt, own, turn], shared=1)])
    except StoreError:
        continue  # the server is away: not acknowledged
    sys.stdout.write(f"{who}-{n // 2} {n}\\n")  # in one piece, also where Python does not buffer
    sys.stdout.flush()
    if who == "w0" and n % 5 == 4:
        try:
            archive.collect()
        except ArchiveError as exc:
            print(f"collector: {exc}", file=sys.stderr)
"""


def start(place: str, who: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, place, who, str(count)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )


def check(place: str, acknowledged: list[str]) -> None:
    """Check that every acknowledged line is a version with its tokens, and that the archive is sound."""
    archive = TowerArchive.open(place, [BytesCodec()])
    report = archive.verify(decode=True)
    assert report.sound, report
    for line in acknowledged:
        name, number = line.split()
        ends = [bytes(archive.tower(v).tokens[-12:].astype(np.uint8)) for v in archive.history(name)]
        assert any(end.endswith(f"{name.split('-')[0]} {number}".encode()) for end in ends), line


def test_writers_and_a_collector_side_by_side(place: str) -> None:
    TowerArchive.create(place, [BytesCodec()])
    writers = [start(place, f"w{i}", 10) for i in range(3)]
    results = [w.communicate(timeout=60) for w in writers]
    assert [w.returncode for w in writers] == [0, 0, 0], results
    lines = [line for out, _ in results for line in out.splitlines()]
    assert len(lines) == 30
    check(place, lines)
    archive = TowerArchive.open(place, [BytesCodec()])
    archive.collect()
    archive.collect()
    check(place, lines)
    assert len(list(archive.ls())) == 15


def test_killed_writers_leave_what_they_acknowledged(place: str) -> None:
    TowerArchive.create(place, [BytesCodec()])
    lines: list[str] = []
    for turn in range(4):
        writer = start(place, f"w{turn}", 10_000)
        assert writer.stdout
        lines.append(writer.stdout.readline().strip())
        time.sleep(0.02 * turn + 0.01)
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=60)
        lines += rest.splitlines()[:-1]  # the last line may be half a line
    check(place, lines)
    TowerArchive.open(place, [BytesCodec()]).put([NewSession("after", [np.arange(3)])])
    check(place, lines)
