"""The ways of a session stay short: a put, a get and a compress enter few files, and move between them seldom."""

from __future__ import annotations

from pltz.benchmarks.trace_session import traced

BOUNDS = {"put": (40, 240), "get": (28, 110), "compress, loaded": (28, 110)}  # files, and moves between files


def test_the_ways_of_a_session_stay_short() -> None:
    found = traced()
    assert {way: found[way] for way, most in BOUNDS.items() if found[way].files > most[0]} == {}
    assert {way: found[way] for way, most in BOUNDS.items() if found[way].moves > most[1]} == {}
