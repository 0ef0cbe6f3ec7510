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


def ok(done: Result) -> Result:
    """Check that a command ended well."""
    assert done.exit_code == 0, done.output
    return done


def told(done: Result) -> Any:
    """Return the JSON of the last line of a command that ended well."""
    return json.loads(ok(done).stdout.splitlines()[-1])


def lines(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ok(done).stdout.splitlines()]


def into(folder: object) -> str:
    """Return a folder as `pltz archive get -o` takes it."""
    return f"{folder}/"
