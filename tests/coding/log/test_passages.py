"""Passages: logs that quote the same are found by it, wherever it stands in them."""

import json
import random

import numpy as np

from pltz.coding.log.passages import passages_of, worth_most
from pltz.coding.neighbours import Neighbours

WORDS = ["".join(random.Random(n).choices("abcdefghilmnoprstuw", k=2 + n % 8)) for n in range(400)]


def manual(seed: int, words: int = 600) -> str:
    dice = random.Random(seed)
    return "\n".join(" ".join(dice.choices(WORDS, k=12)) for _ in range(words // 12))


def log(*texts: str, noise: int = 0) -> bytes:
    own = [f"{random.Random(noise + n).random()} is said here and nowhere else {noise}" for n in range(9)]
    lines = [{"uuid": f"{1000 * noise + n:032x}", "text": text} for n, text in enumerate((*own, *texts))]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def shared(a: bytes, b: bytes) -> float:
    return len(np.intersect1d(passages_of(a), passages_of(b))) / len(passages_of(a))


def test_what_is_quoted_is_found_in_any_place_and_escape() -> None:
    quoted = log(manual(1), noise=1)
    assert shared(quoted, log(manual(2), manual(1), noise=2)) > 0.7
    assert shared(quoted, log(json.dumps({"output": manual(1)}), noise=3)) > 0.7  # JSON within a string
    one_line = log(manual(1).replace("\n", " "), noise=4)
    assert shared(one_line, log("and " + manual(1).replace("\n", " "), noise=5)) > 0.5
    assert shared(quoted, log(manual(2), noise=6)) == 0


def test_keys_ids_and_short_lines_are_no_passages() -> None:
    assert not len(passages_of(b'{"uuid":"3f2a","text":"short"}\n' * 50)) and not len(passages_of(b""))


def test_an_earlier_log_is_worth_it_where_it_makes_a_log_smaller() -> None:
    logs = [log(manual(1), noise=1), log(manual(2), noise=2)]
    assert worth_most(log(manual(2), noise=3), logs, bytes) == logs[1]
    assert worth_most(random.Random(4).randbytes(9000), logs, bytes) is None and worth_most(b"any", [], bytes) is None


def test_earlier_logs_are_found_three_in_a_row_and_none_that_is_far_longer() -> None:
    earlier = Neighbours()
    logs = [log(manual(1), manual(10 + n), noise=n) for n in range(6)]
    found = [earlier.log(n, one, passages_of(one)) for n, one in enumerate(logs)]
    assert found[0] is None
    depths = [0]
    for one in found[1:]:
        assert one is not None
        depths.append(one.depth + 1)
    assert max(depths) <= 3
    long = Neighbours()
    logs = [log(manual(1), *(manual(20 + n, 6000) for n in range(20))), log(manual(1), noise=1)]
    assert all(long.log(number, log, passages_of(log)) is None for number, log in enumerate(logs))
