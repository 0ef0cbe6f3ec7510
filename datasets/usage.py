"""Usage: what the log of an agent tells of its project, models, tokens and money.

    usage_of([{"cwd": "/shop"}, {"message": {"id": "m", "model": "opus", "usage": {"input_tokens": 9, ...}}}])
    Usage(project="/shop", models=("opus",), input=9, ...)

Agents have other names for the same, and no format is asked: an object under `COUNTS` with numbers is a count. One that
comes again for one message, as where an answer is streamed, counts once. No price is looked up: money is as logged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

COUNTS = "usage", "tokens", "total_token_usage"  # keys of counts of tokens; the last is of all before it
INPUT = "input_tokens", "prompt_tokens", "input", "inputTokens"  # the last with what caches had
OUTPUT = "output_tokens", "completion_tokens", "output", "outputTokens"
READ = "cache_read_input_tokens", "cacheRead", "cacheReadTokens"
WRITTEN = "cache_creation_input_tokens", "cacheWrite", "cacheWriteTokens"
WITHIN = "cached_input_tokens", "cached"  # read from a cache and counted as input, too
PLACES = "cwd", "directory"
SAID = frozenset(("content", "parts", "text", "input", "arguments", "output", "toolUseResult", "toolCalls", "result"))
DEEP = 6  # levels of a log in which something is looked for


class Usage(NamedTuple):
    """Tokens, models and money of a session. Empty or 0: its log does not say.

    Attributes:
        project: folder that its agent began in.
        models: in the order in which they were asked.
        input, output: tokens; of the input those that no cache had.
        read, written: tokens of the input from and for a cache.
        cost: in dollars, as the log has it.
        summed: its last count is of all before it.
    """

    project: str = ""
    models: tuple[str, ...] = ()
    input: int = 0
    output: int = 0
    read: int = 0
    written: int = 0
    cost: float = 0.0
    summed: bool = False

    def then(self, after: Usage) -> Usage:
        """Return the usage of a log of which ``after`` is of the part that follows."""
        models = tuple(dict.fromkeys(self.models + after.models))
        before = (0, 0, 0, 0) if after.summed else self[2:6]
        counts = (a + b for a, b in zip(before, after[2:6], strict=True))
        both = [self.project or after.project, models, *counts, self.cost + after.cost, self.summed or after.summed]
        return Usage._make(both)


NOT_KNOWN = Usage()


def usage_of(value: Any) -> Usage:
    """Return what a log tells, parsed: its events, or one object. Nothing is raised, whatever it holds.

    >>> usage_of({"messages": [{"id": "1", "tokens": {"input": 9, "cached": 4, "output": 2}, "model": "gemini"}]})
    Usage(project='', models=('gemini',), input=5, output=2, read=4, written=0, cost=0.0, summed=False)
    """
    places, models = list[str](), dict[str, None]()
    counts, money = dict[Any, tuple[int, int, int, int]](), dict[Any, float]()

    def walk(some: Any, deep: int) -> None:
        if isinstance(some, list) and deep <= DEEP:
            for item in some:
                walk(item, deep + 1)
        if not isinstance(some, dict):
            return
        name = some["id"] if isinstance(some.get("id"), str) else len(counts)
        for key, item in some.items():
            if key in COUNTS and deep != 1 and isinstance(item, dict) and (found := _count(item)):
                counts[key if key == COUNTS[-1] else name] = found
                money[name] = _number(item.get("cost"), ("total",)) or _number(some, ("cost",))
            if isinstance(item, dict | list) and deep < DEEP and key not in SAID:
                walk(item, deep + 1)
            elif key in PLACES and isinstance(item, str):
                places.append(item)
            elif key in ("model", "modelID") and isinstance(item, str) and item and not item.startswith("<"):
                models[item] = None
        if spent := _number(some, ("costUSD",)):
            money[some["uuid"] if isinstance(some.get("uuid"), str) else name] = spent

    walk(value, 0)  # what an object has at its first level is of the session: the sums of its messages
    sums = [sum(column) for column in zip(*counts.values(), strict=True)] or [0] * 4
    place = next(filter(None, places), "")
    return Usage._make([place, tuple(models), *sums, float(sum(money.values())), COUNTS[-1] in counts])


def _count(item: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """Return the tokens of a count: input, output, read and written; None where it is none."""
    cache = item.get("cache") if isinstance(item.get("cache"), dict) else {}
    within = int(_number(item, WITHIN) or _number(item.get("prompt_tokens_details"), ("cached_tokens",)))
    read, written = (int(_number(item, keys)) for keys in (READ, WRITTEN))
    both = read + written if INPUT[-1] in item else 0
    apart = item.get("thoughts") or (item.get("reasoning") if cache else 0)  # of some it is within the output
    found = (
        max(0, int(_number(item, INPUT)) - within - both),
        int(_number(item, OUTPUT)) + (apart if isinstance(apart, int) else 0),
        (read or int(_number(cache, ("read",)))) + within,
        written or int(_number(cache, ("write",))),
    )
    return found if any(found) else None


def _number(item: Any, keys: Iterable[str]) -> float:
    """Return the first number above 0 under one of some keys; 0 where there is none."""
    values = [item.get(key) for key in keys] if isinstance(item, dict) else []
    return next((v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < 1 << 60), 0)
