"""Ways take turns, what warms up is not counted, and each result is looked at."""

from functools import partial

from pltz.benchmarks.turns import Way, take_turns


def test_ways_take_turns_and_the_first_round_warms_up() -> None:
    done, seen = list[str](), list[tuple[str, str, bool]]()

    def call(name: str) -> str:
        done.append(name)
        return name.upper()

    ways = [Way(name, 0, partial(done.append, f"before {name}"), partial(call, name)) for name in "ab"]
    times = take_turns(ways, 2, lambda name, result, seconds: seen.append((name, result, seconds is None)))
    assert done == ["before a", "a", "before b", "b"] * 3
    assert seen == [("a", "A", True), ("b", "B", True)] + [("a", "A", False), ("b", "B", False)] * 2
    assert {name: len(spent) for name, spent in times.items()} == {"a": 2, "b": 2}
