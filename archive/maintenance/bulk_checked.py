"""The result of a check of packs, as a worker returns it and a journal keeps it: JSON values and arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pltz.archive.catalog.problems import Problem
from pltz.archive.maintenance.bulk_journal import Result
from pltz.archive.maintenance.bulk_verify import BulkVerified
from pltz.archive.maintenance.verify import CheckedPacks, Report

COUNTS = ("packs", "records", "decoded", "undecoded", "unreadable")
COLUMNS = ("offsets", "bounds", "near", "ids", "parents")
TYPES = {"offsets": np.int64, "bounds": np.int64, "near": np.bool_, "ids": np.uint64, "parents": np.uint64}
SETS = ("doubted", "unread", "blind")
WIDE = ("ids", "parents")  # two numbers in each row


def as_fields(report: Report) -> dict[str, Any]:
    """Return what a report says of the packs checked so far, as JSON."""
    found: dict[str, Any] = {key: getattr(report, key) for key in COUNTS}
    found["problems"] = _rows(report.problems)
    found |= {"cursor": report.cursor.hex(), "within": report.within.hex(), "offset": report.offset}
    return found | {"bad": sorted(b.hex() for b in report.bad)}


def report_of(fields: Mapping[str, Any]) -> Report:
    """Return the report of such fields. Raises ValueError, KeyError, TypeError, AttributeError, ArithmeticError."""
    report = Report(
        problems=_problems(fields["problems"]),
        cursor=bytes.fromhex(fields["cursor"]),
        within=bytes.fromhex(fields.get("within", "")),
        offset=int(fields.get("offset", 0)),
        bad={bytes.fromhex(b) for b in fields["bad"]},
    )
    for key in COUNTS:
        setattr(report, key, int(fields.get(key, 0)))
    return report


def packed(checked: CheckedPacks) -> Result:
    """Return what a check found as JSON values and arrays. A column of all packs is one array."""
    found: Result = {
        "report": as_fields(checked.report),
        **{name: sorted(pack.hex() for pack in getattr(checked, name)) for name in SETS},
        "problems": _rows(checked.problems),
        "swept": [[s.pack.hex(), s.records, *(len(getattr(s, c)) for c in COLUMNS)] for s in checked.swept],
    }
    for column, dtype in TYPES.items():
        shape = (0, 2) if column in WIDE else (0,)
        found[column] = np.concatenate([np.zeros(shape, dtype), *(getattr(s, column) for s in checked.swept)])
    return found


def unpacked(result: Result) -> CheckedPacks:
    """Return what a check found. Raises the errors of `report_of` where the result is of something else."""
    rows = result["swept"]
    parts: list[Sequence[Any]] = []
    for number, column in enumerate(COLUMNS):
        ends = accumulate([0, *(int(row[2 + number]) for row in rows)])
        parts.append([result[column][begin:end] for begin, end in pairwise(ends)])
    swept = [
        BulkVerified(bytes.fromhex(row[0]), int(row[1]), *(part[n] for part in parts)) for n, row in enumerate(rows)
    ]
    doubted, unread, blind = ({bytes.fromhex(pack) for pack in result[name]} for name in SETS)
    return CheckedPacks(report_of(result["report"]), swept, doubted, _problems(result["problems"]), unread, blind)


def _rows(problems: Iterable[Problem]) -> list[list[str]]:
    return [[p.kind, p.name, p.what] for p in problems]


def _problems(rows: Iterable[Sequence[object]]) -> list[Problem]:
    return [Problem(*map(str, row)) for row in rows]
