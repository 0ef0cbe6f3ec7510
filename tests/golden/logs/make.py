"""Write the golden log frames of the bundle that ships with pltz, one file per method and layout. Only for a new
bundle, or a new version of the frame or of its table: files that exist are never written again, since what was frozen
once must thaw.

    python tests/golden/logs/make.py

A file is named after the bundle, the version of the table, and the method.
"""

import hashlib
import json
import sys
from pathlib import Path
from uuid import UUID

from pltz.coding.log import table
from pltz.coding.log.above import Above
from pltz.coding.log.log_coder import LogCoder
from pltz.models.bundle.bundle import Bundle

HERE = Path(__file__).parent
SAID = (
    "Please look at the tests of the parser and tell me why the second one fails on my machine.",
    "The second test opens a file by a relative path. It passes only where the tests run in the root of the project.",
    "Then give it the path of the folder that holds the test, and run all of them once more.",
    "All of them pass now. I changed one line in tests/test_parser.py and nothing else.",
)


def log(first: int, last: int) -> bytes:
    """Return the lines of a small log from one number up to another."""
    events = []
    for number in range(first, last):
        text = f"{SAID[number % len(SAID)]} This was step {number}."
        uuid = str(UUID(bytes=hashlib.sha256(bytes([number])).digest()[:16], version=4))
        ids = {"uuid": uuid, "parent": number - 1}
        time = f"2026-03-04T05:06:{number:02d}.789Z"
        events.append({**ids, "time": time, "message": {"role": ("user", "assistant")[number % 2], "content": text}})
    return b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)


def count(lines: int) -> bytes:
    """Return one event that counts, of which no copy of 32 tokens saves any."""
    said = "".join(f"Step {n}: read {n * n} lines, wrote {3 * n + 1}, and went on to {n + 1}.\n" for n in range(lines))
    return json.dumps({"message": {"role": "user", "content": said}}, separators=(",", ":")).encode() + b"\n"


# case: content, the case above it, whether the model may code its text, whether in the fast layout
CASES = {
    "packed": (b"\xff" * 300, "", True, False), "ppmd": (log(0, 40), "", False, False),
    "model": (log(0, 12), "", True, False), "long": (count(200), "", True, False), "fast": (log(0, 12), "", True, True),
    "above": (log(12, 18), "model", True, False), "grown": (log(18, 24), "above", False, False),
    "again": (log(24, 26), "grown", True, False),
}


def above(case: str) -> Above | None:
    """Return what a case is coded after, as its writer has it."""
    up = CASES[case][1]
    return Above.of(CASES[up][0], above(up)) if up else None


def name(case: str, bundle: Bundle) -> str:
    """Return the name of a case's file."""
    return f"{bundle.id.hex()}-{table.VERSION}-{case}.frame"


def main() -> None:
    """See the head of this file."""
    bundle = Bundle.load(sys.argv[1] if len(sys.argv) > 1 else "mini")
    coder = LogCoder(bundle, bundle.coder)
    for case, (content, _, by_model, fast) in CASES.items():
        path = HERE / name(case, bundle)
        if path.exists():
            print(f"{path.name} exists: golden files are not refreshed", file=sys.stderr)
            continue
        part = content, above(case)
        path.write_bytes(coder.encode_begun([part], [coder.begin(*part, by_model)], fast=fast)[0])
        print(json.dumps({"file": path.name, "bytes": path.stat().st_size}))


if __name__ == "__main__":
    main()
