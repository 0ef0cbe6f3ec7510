"""Text of logs: make training records of the text that the log coder leaves to the model (coding/log/table.py).

    python -m pltz.benchmarks.records.log_text agents_train.jsonl.zst data/logs.jsonl
    python -m pltz.benchmarks.records.log_text agents_validation.jsonl.zst validation.jsonl --length 20000 --chats 0

The input has a record with ``kind`` (claude-code, codex, ...) and ``text``, the bytes of one log. Each log is split
alone, and its pieces of text go into records of one length. Some records are chats whose roles are the voices of the
pieces, the others plain texts. Ids are log-KIND-NUMBER. So training calls their sources log-KIND and text:log-KIND.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from pltz.coding.log import table
from pltz.coding.log.table import TextPiece
from pltz.datasets.loaders import load
from pltz.plt_codec.errors import UsageError

ROLES: Final = ("user", "assistant", "tool", "system", "assistant", "tool")  # of the voices of a piece


@click.command()
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--length", type=click.IntRange(1), default=48_000, show_default=True, help="Characters per record.")
@click.option("--chats", type=click.FloatRange(0, 1), default=0.4, show_default=True, help="Share of records.")
def main(source: str, target: Path, length: int, chats: float) -> None:
    """Write the records of the logs of SOURCE, a JSONL file, to TARGET, and print one line of JSON."""
    draw, logs, raw, count = random.Random(1), 0, 0, 0
    with target.open("w", encoding="utf-8", newline="\n") as file:
        for kind, data in read(source):
            logs, raw = logs + 1, raw + len(data)
            for group in cut(table.split(data).pieces, length):
                content = chat(group) if draw.random() < chats else {"text": "\n".join(p.text for p in group)}
                file.write(json.dumps({"id": f"log-{kind}-{count}", **content}) + "\n")
                count += 1
    click.echo(json.dumps({"logs": logs, "bytes": raw, "records": count}))


def read(source: str) -> Iterator[tuple[str, bytes]]:
    """Yield kind and bytes of each log.

    Raises:
        UsageError: a record is no log, or the file cannot be read.
    """
    for number, session in enumerate(load(source, "jsonl"), 1):
        value = session.value if session.kind == "chat" and isinstance(session.value, dict) else {}
        if not isinstance(value.get("kind"), str) or not isinstance(value.get("text"), str):
            raise UsageError(f'{source}: expected a record with "kind" and "text" as session {number}')
        yield value["kind"], value["text"].encode("utf-8", "surrogatepass")


def cut(pieces: Iterable[TextPiece], length: int) -> Iterator[list[TextPiece]]:
    """Yield groups of pieces of so many characters, the last of fewer. Pieces are cut, and empty ones left out."""
    group: list[TextPiece] = []
    free = length
    for voice, text in pieces:
        while text:
            group.append(TextPiece(voice, text[:free]))
            text, free = text[free:], free - len(group[-1].text)
            if not free:
                yield group
                group, free = [], length
    if group:
        yield group


def chat(group: Iterable[TextPiece]) -> dict[str, Any]:
    """Return a chat of the pieces, those of one role after the other as one message."""
    messages: list[dict[str, str]] = []
    for voice, text in group:
        if messages and messages[-1]["role"] == ROLES[voice]:
            messages[-1]["content"] += "\n" + text
        else:
            messages.append({"role": ROLES[voice], "content": text})
    return {"messages": messages}


if __name__ == "__main__":
    main()
