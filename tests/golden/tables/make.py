"""Write the golden tables of logs, one file per version of the format; files that exist are never written again.

    python tests/golden/tables/make.py
"""

import itertools
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from pltz.coding.log import table
from pltz.coding.log.above import Above
from tests.coding.log import logs


def parts(name: str) -> list[tuple[bytes, Above | None]]:
    """Return the contents of a log and what is above each: the whole, and its thirds after those before them."""
    data = logs.LOGS[name]
    cuts = [0, *(data.index(b"\n", len(data) * n // 3) + 1 for n in (1, 2)), len(data)]
    rows: list[tuple[bytes, Above | None]] = [(data, None)]
    up = None
    for a, b in itertools.pairwise(cuts):
        rows.append((data[a:b], up))
        up = Above.of(data[a:b], up)
    return rows


def main() -> None:
    """See the head of this file."""
    path = HERE / f"version-{table.VERSION}.json"
    if path.exists():
        raise SystemExit(f"{path.name} exists: golden files are not refreshed")
    rows = []
    for name in logs.LOGS:
        for number, (data, above) in enumerate(parts(name)):
            found = table.split(data, above)
            row = {"name": name, "part": number, "count": len(data)}
            pieces = [list(piece) for piece in found.pieces]
            rows.append({**row, "columns": found.columns.hex(), "opaque": found.opaque.hex(), "pieces": pieces})
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    print(json.dumps({"file": path.name, "tables": len(rows)}))


if __name__ == "__main__":
    main()
