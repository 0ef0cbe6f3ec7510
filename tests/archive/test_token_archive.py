"""Sessions as token ids in an archive: any ids back, what is shared stored once, salts apart, nothing stored twice."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pltz import PutReceipt, PutRequest
from pltz.archive.errors import NotFound
from pltz.archive.format.ids import tenant_of
from pltz.archive.writing.cut import MAX_SEGMENT
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError, TokenizerMismatch, UsageError
from pltz.plt_codec.identity import NONE
from tests.archive.towers import SessionArchive
from tests.examples import examples
from tests.models.target_tokenizers import PAGE, target

SYSTEM = np.random.default_rng(1).integers(20, 1000, 80)
slow_fixture = settings(
    deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def cold(tmp_path: Path, bundle: Bundle) -> SessionArchive:
    return SessionArchive.open(tmp_path / "cold", [bundle], create=True, threads=1)


def ids(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.concatenate([SYSTEM, np.random.default_rng(seed).integers(20, 1000, count)])


def put(cold: SessionArchive, name: str, tokens: Any, **options: Any) -> PutReceipt:
    return next(cold.put([request(name, tokens, **options)]))


def request(name: str, tokens: Any, tokenizer: bytes = NONE, **options: Any) -> PutRequest:
    """Return a request to put token ids as they are, by default of the bundle."""
    return PutRequest(name, Session("ids", tokens), tokenizer=tokenizer, **options)


def lengths(cold: SessionArchive, name: str, **options: Any) -> list[int]:
    return [len(tokens) for _, tokens in cold.get_ids(name, **options).segments]


def test_the_same_again_is_stored_once(cold: SessionArchive) -> None:
    first = put(cold, "a", ids(50), time=5, tags={"k": "v"}, target=bytes(range(16)))
    again = put(cold, "a", ids(50), time=9, tags={"k": "v"}, target=bytes(range(16)))
    assert not first.unchanged and again.unchanged and again.size == 0
    assert not put(cold, "a", ids(50), time=9, tags={"k": "w"}, target=bytes(range(16))).unchanged
    assert not put(cold, "a", ids(50), time=9, tags={"k": "w"}, target=bytes(16)).unchanged


def test_tenants_share_only_what_has_a_base(cold: SessionArchive) -> None:
    assert [r.segments for r in [put(cold, "s", ids(20, 1), tenant=t, prefixes=(80,)) for t in ("a", "b")]] == [2, 2]
    based = [put(cold, "t", ids(20, 2), tenant=t, prefixes=(80,), base="prompt") for t in ("a", "b")]
    assert [r.segments for r in based] == [2, 1]
    grown = put(cold, "t", np.concatenate([ids(20, 2), ids(5, 3)]), tenant="b")
    assert grown.segments == 1  # the base of the last version stays


def test_salts_share_nothing_and_find_nothing(cold: SessionArchive) -> None:
    for salt in (None, "one", "two"):
        assert put(cold, "s", ids(20), tenant=tenant_of("acme", salt), prefixes=(80,)).segments == 2
    put(cold, "t", ids(30), tenant=tenant_of("acme", "one"))
    assert np.array_equal(cold.get_ids("t", "acme", salt="one").ids, ids(30))
    others: list[str | bytes | None] = [None, "two", b"other"]
    for other in others:
        with pytest.raises(NotFound):
            cold.get_ids("t", "acme", salt=other)
    assert tenant_of("acme", "one") == tenant_of("acme", b"one") != tenant_of("acm", "one")
    with pytest.raises(UsageError):
        tenant_of(tenant_of("acme", "one"), "one")


def test_a_fork_builds_on_its_parent(cold: SessionArchive) -> None:
    put(cold, "a", ids(50))
    put(cold, "a", np.concatenate([ids(50), ids(30, 9)]))
    fork = np.concatenate([ids(50), ids(7, 4)])
    assert put(cold, "b", fork, parent="a").segments == 1 and np.array_equal(cold.get_ids("b").ids, fork)
    other = request("d", np.append(ids(60, 7), 5), parent="c")
    assert [d.segments for d in cold.put([request("c", ids(60, 7)), other])] == [1, 1]


def test_many_equal_ids_are_cut_to_what_a_record_holds(cold: SessionArchive) -> None:
    many = np.full(2 * MAX_SEGMENT + 5, 7)
    put(cold, "a", many)
    assert lengths(cold, "a") == [MAX_SEGMENT, MAX_SEGMENT, 5] and np.array_equal(cold.get_ids("a").ids, many)


@slow_fixture
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.booleans()), min_size=1, max_size=6), st.data())
def test_any_history_comes_back(cold: SessionArchive, steps: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    """Cut a session back at any point and continue it, repeatedly, with any prefixes."""
    name = f"s{len(list(cold.archive.ls()))}/{data.draw(st.integers(0, 10**9))}"
    tokens = np.zeros(0, np.int64)
    wanted: list[list[int]] = []
    for number, (kept, new, based) in enumerate(steps):
        tokens = np.concatenate([tokens[:kept], np.random.default_rng(number).integers(0, 1000, new)])
        ends = tuple(sorted(data.draw(st.sets(st.integers(1, 80), max_size=3))))
        put(cold, name, tokens, prefixes=ends, base="b" if based else None, time=number)
        if not wanted or wanted[-1] != tokens.tolist():
            wanted.append(tokens.tolist())
        assert cold.get_ids(name).ids.tolist() == tokens.tolist()
    assert [cold.get_ids(name, version=n + 1).ids.tolist() for n in range(len(wanted))] == wanted


@pytest.mark.parametrize("kind", ["byte-level", "mistral", "wordpiece"])
def test_ids_of_another_tokenizer(tmp_path: Path, bundle: Bundle, kind: str) -> None:
    spec = target(kind).to_str().encode()
    tokens = np.array(target(kind).encode(PAGE, add_special_tokens=False).ids)
    cold = SessionArchive.open(tmp_path / "cold", [bundle], create=True)
    name = cold.add(spec)
    with pytest.raises(TokenizerMismatch):
        put(cold, "x", tokens, tokenizer=b"another tokenize")
    put(cold, "a", tokens[:50], tokenizer=name)
    put(cold, "a", tokens, tokenizer=name)
    put(cold, "own", ids(9))
    with pytest.raises(ContentError):
        put(cold, "bad", [10**6], tokenizer=name)
    again = SessionArchive.open(tmp_path / "cold", [bundle], tokenizers=[spec])
    assert np.array_equal(again.get_ids("a").ids, tokens) and lengths(again, "a")[0] == 50
    assert np.array_equal(again.get_ids("own").ids, ids(9))


def test_a_chat_is_not_taken_for_token_ids(tmp_path: Path, bundle: Bundle) -> None:
    chats = SessionArchive.create(tmp_path / "cold", [bundle])
    list(chats.put([PutRequest("chat", Session("chat", {"messages": []}))]))
    cold = SessionArchive.open(tmp_path / "cold", [bundle])
    with pytest.raises(ContentError):
        cold.get_ids("chat")
    put(cold, "chat", ids(5))  # its next version
    assert np.array_equal(cold.get_ids("chat").ids, ids(5)) and cold.get_ids("chat").target is None
    ids_of_bundle = SessionArchive.open(tmp_path / "cold", [bundle])
    assert np.array_equal(ids_of_bundle.get("chat").value, ids(5))
