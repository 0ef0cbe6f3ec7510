"""OutcomeFile: what forms lose on each row, kept so that a killed measurement goes on where it was.

    {"benchmark": "kv", "context": 1536, ...}                                      the setting
    {"row": "3f...", "form": "q8", "load": 1.2, "outcome": {"kl": [[...]], ...}}   one line per row and form

A line is written once its row is measured, and reaches the disk before the next row. `fitting.py` and
`experiments/bench_kv.py --resume` keep their rows in such files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.kv.calibrate import measure
from pltz.kv.calibrate.measure import CONTROL, Outcome
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.kv.port.codec import KVCodec
    from pltz.models import Target


class OutcomeFile:
    """The loss of each form on each row, in memory and, where there is a path, in a file of JSON lines.

    ``setting``: what else the figures depend on. A line that a kill cut off is measured again. Raises UsageError for a
    file of another setting, or one that is none of these.
    """

    def __init__(self, path: str | os.PathLike[str] | None, setting: Mapping[str, Any]) -> None:
        self.path = Path(path) if path else None
        self._found: dict[tuple[str, str], tuple[Outcome, float]] = {}
        if self.path is None:
            return
        head = json.dumps({"benchmark": "kv", **setting}, sort_keys=True)
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            lines = whole.decode().splitlines()
            if lines and lines[0] != head:
                raise UsageError(f"{path} is of another setting: expected {head}, found {lines[0][:300]}")
            for line in map(json.loads, lines[1:]):
                self._found[line["row"], line["form"]] = _outcome(line["outcome"]), float(line["load"])
            if data and not lines:
                raise ValueError("no whole line")
            with self.path.open("ab") as file:
                file.truncate(len(whole))
            if not lines:
                self._write([head])
        except OSError as exc:
            raise UsageError(f"cannot keep rows in {path}: {exc.strerror or exc}") from exc
        except (ArithmeticError, AttributeError, ValueError, KeyError, TypeError, RecursionError) as exc:
            raise UsageError(f"{path} holds no rows of this benchmark ({exc}): name another file") from exc

    def measure(
        self,
        target: Target,
        row: NDArray[np.int32],
        context: int,
        codecs: Mapping[str, tuple[str, KVCodec]],
        *,
        control: bool = True,
    ) -> None:
        """Measure on a row of ids those forms that the file lacks, and keep what they lose.

        ``codecs``: name and codec of each form, by what it is kept under. The others: as in `measure.compare`.
        """
        lacking = {form: named for form, named in codecs.items() if not self.has(row, form)}
        control = control and not self.has(row, CONTROL)
        if not lacking and not control:
            return
        found = measure.compare(target, row[None], context, list(lacking.values()), control=control)
        load = round(os.getloadavg()[0], 1)
        lines = []
        for form, outcome in zip([CONTROL] * control + list(lacking), found, strict=True):
            self._found[_digest(row), form] = outcome, load
            facts = asdict(outcome)
            facts |= {name: [part.tolist() for part in facts[name]] for name in ("kl", "copied", "asked")}
            lines.append(json.dumps({"row": _digest(row), "form": form, "load": load, "outcome": facts}))
        if self.path is not None:
            self._write(lines)

    def has(self, row: NDArray[np.int32], form: str) -> bool:
        """Return whether a form was measured on a row of ids."""
        return (_digest(row), form) in self._found

    def total(self, rows: NDArray[np.int32], form: str, name: str) -> Outcome:
        """Return the outcome of a form on all rows, under a name."""
        total = Outcome(name)
        for row in rows:
            total.add(self._found[_digest(row), form][0])
        return total

    def load(self) -> list[float]:
        """Return the lowest and the highest load of the machine, over a minute, after a measurement."""
        loads = [load for _, load in self._found.values()]
        return [min(loads), max(loads)]

    def _write(self, lines: list[str]) -> None:
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())


def _outcome(facts: dict[str, Any]) -> Outcome:
    lists = {name: [np.array(part, np.float32) for part in facts[name]] for name in ("kl", "copied", "asked")}
    return Outcome(**{**facts, **lists})


def _digest(row: NDArray[np.int32]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(row, "<i4").tobytes(), digest_size=8).hexdigest()
