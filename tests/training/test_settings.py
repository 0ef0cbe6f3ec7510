"""Configurations of a training run: read whole or refused by name (training/settings.py)."""

import dataclasses
from pathlib import Path

import pytest

from pltz.plt_codec.errors import UsageError
from pltz.training import settings
from pltz.training.pipeline import sampling


def test_the_example_is_a_configuration_and_names_every_key(tmp_path: Path) -> None:
    example = settings.EXAMPLE.read_text("utf8")
    path = tmp_path / "example.toml"
    path.write_text(example)
    found = settings.load(path)
    assert found.data.files == (str(tmp_path / "chats.jsonl"),) and found.teacher is None
    tables = [f for f in vars(settings).values() if isinstance(f, type) and f.__module__ == settings.__name__]
    for table in (table for table in tables if dataclasses.is_dataclass(table)):
        for field in dataclasses.fields(table):
            assert field.name in example, f"{table.__name__}.{field.name}"
    plain = dataclasses.replace(settings.Student(), seconds=1400.0)
    assert found.student == plain and found.tokenizer == settings.TokenizerSettings()


@pytest.mark.parametrize(("text", "said"), [
    ("[student]\nsteps = 1\nwidth = 3\n", "[student] width: no such key"),
    ('[student]\nsteps = "many"\n', "[student] steps: expected int"),
    ("[student]\nsteps = 1\nseconds = 2\n", "[student] expected either"),
    ('[tokenizer]\nkind = "other"\n', "[tokenizer] kind"), ('[tokenizer]\nkind = "target"\n', "needs a [teacher]"),
    ("[teacher]\nshare = 0.5\n", "[teacher] expected either a target or a bundle, found neither"),
    ('[teacher]\ntarget = "a"\nbundle = "b"\n', "[teacher] expected either a target or a bundle, found both"),
    ('[teacher]\nbundle = "b"\nrepeat = 0\n', "[teacher] repeat: expected 1 or more, found 0"),
    ("[tokenizer]\nvocabulary = 1000\n", "multiple of 128"), ("[data]\nfiles = []\n", "[data] files"),
    ("[data\n", "expected TOML"), ("name = '../x'\n", "plain name"),
    ('[data]\nfiles = ["a"]\n[data.weights]\na = "2"\n', "[data] weights.a: expected float"),
    ('[data]\nfiles = ["a"]\n[data.weights]\na = 0\n', "[data.weights] a: expected a number above 0"),
])
def test_settings_refuse_by_name(tmp_path: Path, text: str, said: str) -> None:
    whole = "" if "[data" in text else '[data]\nfiles = ["a"]\n'
    rest = "" if "[student" in text else "[student]\nsteps = 1\n"
    path = tmp_path / "c.toml"
    path.write_text(text + whole + rest)
    with pytest.raises(UsageError) as caught:
        settings.load(path)
    assert said in str(caught.value)


def test_a_weight_is_of_a_source_that_is_there(streams: Path) -> None:
    with pytest.raises(UsageError, match="no such source, expected some of"):
        sampling(settings.Data(weights={"other": 2.0}), 4096, 64, streams)
    assert sampling(settings.Data(), 4096, 64, streams)["layouts"] == 0.35
