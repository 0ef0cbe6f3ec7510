"""Tokens, models and money are those that logs tell, each once."""

from typing import Any

import pytest

from pltz.datasets.usage import NOT_KNOWN, Usage, usage_of

CLAUDE = {"input_tokens": 2, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 400, "output_tokens": 5}
TOTAL = {"input_tokens": 90, "cached_input_tokens": 80, "output_tokens": 7, "reasoning_output_tokens": 6}
OPEN = {"total": 49, "input": 10, "output": 4, "reasoning": 5, "cache": {"read": 20, "write": 10}}
PI = {"input": 3, "output": 9, "cacheRead": 7, "cacheWrite": 1, "reasoning": 4, "cost": {"input": 0.5, "total": 0.75}}
GEMINI = {"input": 12, "output": 3, "cached": 4, "thoughts": 5, "tool": 0, "total": 20}
COPILOT = {"inputTokens": 100, "outputTokens": 8, "cacheReadTokens": 60, "cacheWriteTokens": 30}


def message(usage: dict[str, int], name: str = "m", model: str = "opus") -> dict[str, Any]:
    return {"cwd": "/shop", "uuid": name, "message": {"id": name, "role": "assistant", "model": model, "usage": usage}}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([message(CLAUDE)], Usage("/shop", ("opus",), 2, 5, 400, 30)),
        # an answer that is streamed comes again, with more tokens
        ([message(CLAUDE), message(CLAUDE | {"output_tokens": 9})], Usage("/shop", ("opus",), 2, 9, 400, 30)),
        ([message(CLAUDE, "a"), message(CLAUDE, "b", "<synthetic>")], Usage("/shop", ("opus",), 4, 10, 800, 60)),
        ([message(CLAUDE) | {"costUSD": 0.25}, message(CLAUDE, "b", "haiku") | {"costUSD": 0.5}],
         Usage("/shop", ("opus", "haiku"), 4, 10, 800, 60, 0.75)),
        ([{"payload": {"cwd": "/a"}}, {"payload": {"info": {"total_token_usage": TOTAL | {"input_tokens": 85}}}},
          {"payload": {"info": {"total_token_usage": TOTAL, "last_token_usage": TOTAL}}}],
         Usage("/a", (), 10, 7, 80, 0, 0.0, True)),
        ({"info": {"id": "ses", "directory": "/b", "tokens": OPEN, "cost": 2},
          "messages": [{"info": {"id": "m", "role": "assistant", "modelID": "deep", "tokens": OPEN, "cost": 1.5},
                        "parts": [{"id": "p", "tokens": OPEN, "cost": 1.5}]}]},
         Usage("/b", ("deep",), 10, 9, 20, 10, 1.5)),
        ([{"message": {"model": "mimo", "usage": PI}}] * 2, Usage("", ("mimo",), 6, 18, 14, 2, 1.5)),
        ({"messages": [{"id": "1", "tokens": GEMINI, "model": "pro"}]}, Usage("", ("pro",), 8, 8, 4, 0)),
        ([{"data": {"modelMetrics": {"opus": {"requests": {"cost": 6}, "usage": COPILOT}}}}],
         Usage("", (), 10, 8, 60, 30)),
        ([{"uuid": ["x"], "costUSD": 1}], Usage(cost=1.0)),
        # what was said is no count
        ([{"role": "user", "content": [{"usage": CLAUDE}]}, {"input": {"usage": CLAUDE}}], NOT_KNOWN),
        ([{"usage": {"input_tokens": True, "output_tokens": -1}}, {"usage": 7}, [[[[[[[["x"]]]]]]]], None], NOT_KNOWN),
        (b"SQLite", NOT_KNOWN),
    ],
)  # fmt: skip
def test_a_log_tells_each_count_once(value: Any, wanted: Usage) -> None:
    assert usage_of(value) == wanted


def test_a_log_in_pieces_is_counted_on() -> None:
    first, second = Usage("/a", ("x",), 1, 2, 3, 4, 0.5), Usage("", ("y", "x"), 10, 20, 30, 40, 1.0)
    assert first.then(second) == Usage("/a", ("x", "y"), 11, 22, 33, 44, 1.5)
    total = second._replace(summed=True)
    assert first._replace(summed=True).then(total)[2:6] == (10, 20, 30, 40)
    assert total.then(NOT_KNOWN).then(total)[2:] == (10, 20, 30, 40, 2.0, True)
