"""The tables of kv/FORMAT.md name the parts, types and shapes that encoders write, and the fields of a receipt."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from pltz.kv.pool.row_form import RowForm
from pltz.kv.port.codec import Span
from pltz.kv.port.receipt import Receipt
from pltz.kv.predictive.predictive import NAMES
from tests.kv.pool.pages import HEADS, LAYERS, form, random_kv

SPEC = (Path(__file__).parents[3] / "kv" / "FORMAT.md").read_text(encoding="utf-8")


def table(section: str) -> dict[str, list[str]]:
    """Return the first table of a section: the other cells of each row by its name."""
    text = SPEC.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows}


@pytest.mark.parametrize("start", [0, 16])
@pytest.mark.parametrize("kind", ["raw", "q8", "q4"])
def test_parts_of_rows_are_those_of_the_table(kind: str, start: int) -> None:
    parts = RowForm(form(kind)).encode(random_kv(48), Span(np.arange(48, dtype=np.int32), start))
    sinks = 4 if start == 0 and kind != "raw" else 0
    wide = {"raw": 64, "q8": 64, "q4": 32}[kind]
    types = {"raw": torch.float32, "q8": torch.int8, "q4": torch.uint8}
    sizes = {"layers": LAYERS, "heads": HEADS, "T": 48, "D": 32, "S": sinks, "W": wide}
    named = table("Rows")
    assert parts.keys() == named.keys() - ({"kv.scale"} if kind == "raw" else set())
    for name, part in parts.items():
        expected = {"kv": types[kind], "kv.scale": torch.float16, "kv.sinks": torch.float32}[name]
        assert (part.dtype, tuple(part.shape)) == (expected, eval(named[name][1], {}, sizes)), name


def test_parts_of_the_predictive_form_and_fields_of_a_receipt() -> None:
    assert table("predictive-1").keys() == NAMES
    found = table("Receipt")
    assert sorted(found) == sorted(field.name for field in fields(Receipt))
    kinds = {"str": "text", "int": "integer", "float": "number", "float | None": "number"}
    for field in fields(Receipt):
        assert found[field.name][0].startswith(kinds[str(field.type)]), field.name
        assert found[field.name][0].endswith("or null") == ("None" in str(field.type)), field.name
