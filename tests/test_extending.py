"""The examples of EXTENDING.md run, in their order, and each of them fills its port."""

import inspect
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pltz.datasets.registry import FORMATS
from pltz.kv.port.codec import KVCodec
from pltz.serving.nightly.sources.registry import SOURCES
from pltz.serving.nightly.sources.source import EntrySource

PAGE = Path(__file__).resolve().parents[1] / "EXTENDING.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PORTS = {"HalfCodec": KVCodec, "TextSource": EntrySource}


def test_the_examples_run_and_fill_their_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pltz.datasets.registry.FORMATS", FORMATS)  # and back at the end
    module = types.ModuleType("extending")
    monkeypatch.setitem(sys.modules, "extending", module)  # dataclasses look for the module of a class
    text = PAGE.read_text("utf8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) >= 6
    try:
        for block in blocks:
            above = "\n" * text.count("\n", 0, block.start(1))  # so that a failure names the line of the page
            exec(compile(above + block[1], str(PAGE), "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    finally:
        SOURCES.pop("texts", None)
    for name, port in PORTS.items():
        assert not missing(getattr(module, name), port), name


def missing(example: Any, port: Any) -> set[str]:
    """Return the methods of a port that an example lacks, or takes with other arguments."""
    members = {name: member for name, member in inspect.getmembers(port) if not name.startswith("_")}
    wrong = set()
    for name, member in members.items():
        if inspect.isfunction(member):
            own = getattr(example, name, None)
            if own is None or list(inspect.signature(own).parameters) != list(inspect.signature(member).parameters):
                wrong.add(name)
    return wrong


def test_a_method_that_is_left_out_or_differs_is_found() -> None:
    class Half:
        def near(self, parts: Any, device: Any) -> Any:
            return parts

        def encode(self, kv: Any) -> Any:
            return {}

    assert missing(Half, KVCodec) == {"encode", "decode", "check"}
