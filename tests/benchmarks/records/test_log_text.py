"""Records of the text of logs have all of it, in order, under the names that training gives sources."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pltz.benchmarks.records import log_text
from pltz.coding.log import table
from pltz.coding.log.table import TextPiece
from pltz.training.data import records
from tests.coding.log import logs


@pytest.mark.filterwarnings("ignore::pltz.datasets.loaders.InputWarning")
@pytest.mark.parametrize(("chats", "source"), [("0", "text:log-codex"), ("1", "log-codex")])
def test_training_sees_the_text_that_the_table_leaves(chats: str, source: str, tmp_path: Path) -> None:
    given, made = tmp_path / "logs.jsonl", tmp_path / "made.jsonl"
    given.write_text(json.dumps({"kind": "codex", "text": logs.LOGS["codex"].decode()}) + "\n", encoding="utf-8")
    options = [str(given), str(made), "--length", "100", "--chats", chats]
    result = CliRunner().invoke(log_text.main, options, catch_exceptions=False)
    found = [records.record(session, made.name) for session in records.load(str(made))]
    assert {one.source for one in found} == {source} and json.loads(result.output)["records"] == len(found) > 2
    wanted = "".join(piece.text for piece in table.split(logs.LOGS["codex"]).pieces)
    said = "".join(text for one in found for text in records.texts(one.session))
    assert said.replace("\n", "") == wanted.replace("\n", "")


def test_pieces_are_cut_at_the_length_and_voices_become_roles() -> None:
    groups = list(log_text.cut([TextPiece(0, "abc"), TextPiece(3, ""), TextPiece(1, "defgh"), TextPiece(4, "i")], 4))
    assert groups == [[TextPiece(0, "abc"), TextPiece(1, "d")], [TextPiece(1, "efgh")], [TextPiece(4, "i")]]
    assert log_text.chat([TextPiece(1, "d"), TextPiece(4, "e"), TextPiece(2, "f")])["messages"] == [
        {"role": "assistant", "content": "d\ne"},
        {"role": "tool", "content": "f"},
    ]
