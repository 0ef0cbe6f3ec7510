"""Helpers of the tests of commands: chats that grow by turns, and the JSON that a command printed."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

Run = Callable[..., Result]
Put = Callable[..., list[dict[str, Any]]]
SYSTEM = {"role": "system", "content": "You are the helpful assistant of a shop that sells bicycles and bells. " * 6}
TURNS = [
    {"role": "user" if n % 2 == 0 else "assistant", "content": f"Turn {n}: where is my bicycle, and {n} bells?"}
    for n in range(8)
]


def chat(turns: int, **more: Any) -> dict[str, Any]:
    return {"messages": [SYSTEM, *TURNS[:turns]], **more}


def lines(done: Result) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def into(folder: object) -> str:
    """Return a folder as `pltz archive get -o` takes it."""
    return f"{folder}/"
