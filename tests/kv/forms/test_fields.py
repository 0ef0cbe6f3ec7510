"""The tables of kv/FORMAT.md name the parts, types and shapes that encoders write, and the fields of a receipt."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from pltz.kv.forms.q4 import FINE, Q4Codec
from pltz.kv.forms.q8 import SINKS, Q8Codec
from pltz.kv.port.codec import KVCodec, Span
from pltz.kv.port.receipt import Receipt
from pltz.kv.predictive.predictive import NAMES
from tests.kv.pool.pages import HEADS, LAYERS, random_kv, rotary

SPEC = (Path(__file__).parents[3] / "kv" / "FORMAT.md").read_text(encoding="utf-8")
TYPES = {"U8": torch.uint8, "I8": torch.int8, "I32": torch.int32, "F16": torch.float16, "of the KV": torch.bfloat16}
TURN = rotary(16)


def table(section: str) -> dict[str, list[str]]:
    """Return the first table of a section: the other cells of each row by its name."""
    text = SPEC.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows}


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("codec", [Q8Codec(TURN), Q4Codec(TURN)], ids=lambda codec: codec.name)
@pytest.mark.parametrize("tokens", [3, 150])
def test_parts_are_those_of_the_table(codec: KVCodec, tokens: int, start: int) -> None:
    kv = random_kv(tokens).bfloat16()
    parts = codec.encode(kv, Span(np.arange(tokens, dtype=np.int32), start, np.ones(tokens, np.float32)))
    sinks = min(SINKS, tokens) if start == 0 else 0
    fine = min(FINE, tokens - sinks)
    sizes = {"layers": LAYERS, "heads": HEADS, "T": tokens, "D": 32, "S": sinks, "F": fine, "M": tokens - sinks - fine}
    named = table(codec.name)
    assert named.keys() == parts.keys()
    for name, (kind, shape, _) in named.items():
        expected = eval(shape.replace("/", "//"), {}, sizes)
        assert (parts[name].dtype, tuple(parts[name].shape)) == (TYPES[kind], expected), name


def test_parts_of_the_predictive_form_and_fields_of_a_receipt() -> None:
    assert table("predictive-1").keys() == NAMES
    found = table("Receipt")
    assert sorted(found) == sorted(field.name for field in fields(Receipt))
    kinds = {"str": "text", "int": "integer", "float": "number", "float | None": "number"}
    for field in fields(Receipt):
        assert found[field.name][0].startswith(kinds[str(field.type)]), field.name
        assert found[field.name][0].endswith("or null") == ("None" in str(field.type)), field.name
