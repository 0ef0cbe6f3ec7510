"""`pltz.Archive`: what users do with an archive, in folders and buckets, open ones and sealed ones."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pltz
from pltz import PutRequest
from pltz.archive import archive as module
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.errors import StaysErased
from pltz.archive.retention import Policy
from pltz.benchmarks.random_weights import random_weights
from pltz.datasets.given import as_session
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.session.session import Session
from pltz.plt_codec.errors import UsageError
from tests.archive.towers import inside
from tests.files import key_file

BAD: Any = 2.5  # no session
CHAT = {"messages": [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi!"}]}
KEY = b"a key of 16 bytes or more"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[..., bytes]) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    write_bundle(folder, "tiny", random_weights(5, vocab=1024, block=128), tiny_tokenizer_json(1024), b"", {})
    return Bundle.load(folder)


@pytest.fixture
def cold(tmp_path: Path, bundle: Bundle) -> pltz.Archive:
    return pltz.Archive.open(tmp_path / "cold", create=True, bundle=bundle, threads=1)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return key_file(tmp_path / "key", KEY)


@pytest.fixture
def sealed(tmp_path: Path, bundle: Bundle, key: Path) -> pltz.Archive:
    return pltz.Archive.open(tmp_path / "sealed", create=True, bundle=bundle, threads=1, key_file=key)


def names(listed: Any) -> list[str]:
    return [version.name for version in listed]


@pytest.mark.parametrize("turns", [2, 3])
def test_the_first_put_of_a_short_chat_takes_at_most_600_bytes(tmp_path: Path, turns: int) -> None:
    """By all files of the archive, parity included."""
    said = [{"role": "system", "content": "You are the help desk of a bicycle shop. Answer briefly."}]
    said += [{"role": "user", "content": "My wheel squeaks when I brake. What can I do?"}]
    said += [{"role": "assistant", "content": "Clean the rim with a cloth, and look at the pads. They may be worn."}]

    def on_disk() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "cold").rglob("*") if path.is_file())

    with pltz.Archive.open(tmp_path / "cold", create=True, actor="alice@bicycles.example") as cold:
        empty = on_disk()
        cold.put("support/ticket-4711", {"messages": said[-turns:]})
        assert on_disk() - empty <= 600


# ---- open


@pytest.mark.parametrize("seal", [False, True])
def test_made_and_opened_again(place: str, key: Path, bundle: Bundle, seal: bool) -> None:
    key_file = key if seal else None
    cold = pltz.Archive.open(place, create=True, bundle=bundle, key_file=key_file)
    cold.put("greeting", "hello")
    for create in (True, False):
        again = pltz.Archive.open(place, create=create, bundle=bundle, key_file=key_file)
        assert again.get("greeting").value == b"hello"
        assert inside(again).settings == inside(cold).settings and inside(again).settings.sealed == seal


def test_nothing_is_made_unasked(place: str, bundle: Bundle) -> None:
    with pytest.raises(pltz.UsageError, match="no archive"):
        pltz.Archive.open(place, bundle=bundle)


def test_keys(tmp_path: Path, bundle: Bundle, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "cold"
    pltz.Archive.open(place, create=True, key_file=key)
    pltz.Archive.open(place, bundle=bundle, key_command=f"cat {key}").put("a", "b")
    with pytest.raises(pltz.KeyMismatch):
        pltz.Archive.open(place, passphrase="words")
    unopened = pltz.Archive.open(place, bundle=bundle)
    for call in (lambda: unopened.put("a", "b"), lambda: unopened.get("a"), lambda: unopened.history("a")):
        with pytest.raises(pltz.KeyMismatch, match="sealed"):
            call()
    assert unopened.verify().sound
    with pytest.raises(pltz.UsageError, match="one of key_file"):
        pltz.Archive.open(place, key_file=key, passphrase="words")
    pltz.Archive.open(tmp_path / "open", create=True)
    with pytest.raises(pltz.UsageError, match="not sealed"):
        pltz.Archive.open(tmp_path / "open", key_file=key)
    monkeypatch.setenv("WORDS", "correct horse")
    pltz.Archive.open(tmp_path / "words", create=True, passphrase="correct horse")
    assert pltz.Archive.open(tmp_path / "words", passphrase_env="WORDS").stat().sessions == 0


def test_archive_json_that_vanished_is_not_made_anew(cold: pltz.Archive, tmp_path: Path) -> None:
    cold.put("a", "b")
    (tmp_path / "cold" / "archive.json").unlink()
    with pytest.raises(pltz.UsageError, match="repair"):
        pltz.Archive.open(tmp_path / "cold", create=True)


def test_no_bundle_is_loaded_to_forget(cold: pltz.Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold.put("a", "b", tags={"x": "y"})
    monkeypatch.setattr(Bundle, "load", lambda *given, **options: pytest.fail("a bundle was loaded"))
    other = pltz.Archive.open(tmp_path / "cold")
    assert names(other.list()) == names(other.history("a")) == ["a"]
    assert other.stat().sessions == 1 and other.verify().sound
    assert names(other.forget("a")) == names(other.undelete("a")) == ["a"]


def test_a_bundle_by_folder_and_more(tmp_path: Path, bundle: Bundle, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    weights = random_weights(7, vocab=1024, block=128)
    write_bundle(tmp_path / "other", "other", weights, tiny_tokenizer_json(1024), b"", {})
    pltz.Archive.open(tmp_path / "cold", create=True, bundle=tmp_path / "other").put(
        "a", [33, 99, 101] * 40, prefixes=(3,)
    )
    with pytest.raises(pltz.BundleMismatch):
        pltz.Archive.open(tmp_path / "cold", bundle=bundle).get("a")
    both = pltz.Archive.open(tmp_path / "cold", bundle=[bundle, tmp_path / "other"])
    assert both.get("a").ids.tolist() == [33, 99, 101] * 40
    assert both.put("b", [33, 99], prefixes=(1,)).by_model and both.codecs.bundle is bundle


def test_a_session_erased_during_a_put_of_many_stops_no_other(
    sealed: pltz.Archive, bundle: Bundle, key: Path, tmp_path: Path
) -> None:
    other = pltz.Archive.open(tmp_path / "sealed", bundle=bundle, threads=1, key_file=key)

    def requests() -> Iterator[PutRequest]:
        yield PutRequest("x", as_session("first"))
        yield PutRequest("y", as_session("to be erased"))
        other.erase("y", tenant="default")
        yield PutRequest("z", as_session("last"))

    sealed.put("y", "to be erased")
    left: list[str] = []
    done = sealed.put_many(requests(), refused=lambda request, exc: left.append(f"{request.name} {type(exc).__name__}"))
    assert [receipt.name for receipt in done] == ["x", "z"] and left == ["y StaysErased"]
    assert names(sealed.list()) == ["x", "z"]
    with pytest.raises(StaysErased):
        sealed.put("y", "to be erased")
    assert [found.state for found in sealed.preview([PutRequest("y", "to be erased")])] == ["erased"]


# ---- put and get


@pytest.mark.parametrize("session", [CHAT, CHAT["messages"], "text", b"\xff", [33, 99, 101], Session("chat", 7)])
def test_what_is_put_is_what_is_got(cold: pltz.Archive, session: Any) -> None:
    receipt = cold.put("s", session, tenant="acme", tags={"channel": "web"}, time=77)
    found = cold.get("s", tenant="acme")
    assert found.session == as_session(session)
    assert (found.tenant, found.name, found.version, found.time) == ("acme", "s", 1, 77)
    assert found.tags == {"channel": "web"} and found.target is None and not found.forgotten
    assert (receipt.tenant, receipt.name, receipt.version, receipt.id) == ("acme", "s", 1, found.id)
    assert not receipt.unchanged and receipt.size > 0


def test_versions(cold: pltz.Archive) -> None:
    first, second = cold.put("s", "one"), cold.put("s", "two")
    assert (first.version, second.version) == (1, 2)
    assert cold.get("s").value == b"two" and cold.get("s", version=1).value == b"one"
    again = cold.put("s", "two")
    assert again.unchanged and again.version == 2 and again.segments == 0
    with pytest.raises(pltz.NotFound, match="versions 1, 2, not 3"):
        cold.get("s", version=3)


def test_ids_of_a_target_with_prefixes(
    cold: pltz.Archive, tmp_path: Path, bundle: Bundle, tiny_tokenizer_json: Callable[..., bytes]
) -> None:
    """Store ids segment by segment, and find them again with the tokenizer named at opening."""
    spec = tiny_tokenizer_json(1536)
    ids = np.random.default_rng(4).integers(40, 1500, 300)
    options: dict[str, Any] = {"tokenizer": spec, "target": b"W" * 16}
    first = cold.put("one", ids[:200], prefixes=(100,), **options)
    grown = cold.put("one", ids, **options)
    other = cold.put("two", [*ids[:100], *ids[:9]], prefixes=(100,), **options)
    fork = cold.put("fork", [*ids[:200], 44], parent="one", **options)
    assert (first.segments, grown.segments, other.segments, fork.segments) == (2, 1, 1, 1)
    again = cold.put("one", ids, **options)
    assert again.unchanged and (again.version, again.id) == (grown.version, grown.id)
    found = pltz.Archive.open(tmp_path / "cold", bundle=bundle, tokenizers=[spec]).get("one")
    assert np.array_equal(found.ids, ids) and found.target == b"W" * 16 and found.version == 2
    with pytest.raises(pltz.BundleMismatch):
        pltz.Archive.open(tmp_path / "cold", bundle=bundle).get("one")


def test_a_target_keeps_the_ids_it_would_see(cold: pltz.Archive, foreign: Path) -> None:
    stranger = pltz.Target.load(foreign)
    cold.put("chat", CHAT, target=stranger)
    cold.put("text", "plain", target=foreign)
    found = cold.get("chat")
    assert found.kind == "ids" and found.target == stranger.fingerprint and found.ids.tolist() == stranger.render(CHAT)
    assert cold.get("text").ids.tolist() == stranger.tokenize("plain")


@pytest.mark.parametrize(("options", "error"), [
    ({"prefixes": (2,)}, "token ids"), ({"parent": "b"}, "token ids"),
    ({"base": "b", "salt": "s"}, "leave one of them out"),
    ({"target": "mini-llama", "tokenizer": b"{}"}, "leave tokenizer out"), ({"time": -1}, "seconds since 1970"),
])
def test_arguments_without_sense_are_refused(cold: pltz.Archive, options: dict[str, Any], error: str) -> None:
    with pytest.raises(pltz.UsageError, match=error):
        cold.put("a", "text", **options)
    assert cold.stat().sessions == 0


def test_many_of_all_kinds_come_back_in_their_order(
    cold: pltz.Archive, tiny_tokenizer_json: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.archive.writing.commits.COMMIT_SESSIONS", 2)
    spec = tiny_tokenizer_json(1536)
    sessions: list[Any] = [CHAT, [40, 41, 42], "text", [43, 44], [45], [46], [47, 48, 49]]
    requests = [
        pltz.PutRequest(f"s/{number}", one, tokenizer=spec if isinstance(one, list) else None)
        for number, one in enumerate(sessions)
    ]
    receipts = list(cold.put_many(iter(requests)))
    assert [receipt.name for receipt in receipts] == [request.name for request in requests]
    for receipt, request in zip(receipts, requests, strict=True):
        assert cold.get(receipt.name).session == as_session(request.session)


def test_what_was_yielded_stays_whatever_follows(
    cold: pltz.Archive, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.archive.writing.commits.COMMIT_SESSIONS", 1)
    requests = [pltz.PutRequest("a", [40, 41], prefixes=(1,)), pltz.PutRequest("b", "text"), pltz.PutRequest("c", BAD)]
    put = cold.put_many(requests)
    assert next(put).name == "a"
    with pytest.raises(pltz.UsageError, match=r"expected a chat .*found float"):
        list(put)
    assert pltz.Archive.open(tmp_path / "cold", bundle=bundle).get("a").value.tolist() == [40, 41]


@pytest.mark.parametrize(("words", "reads"), [(3, 1), (module.QUICK_BYTES, 2)])
def test_a_short_put_reads_the_changes_of_others_once(
    cold: pltz.Archive, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: int, reads: int
) -> None:
    other = pltz.Archive.open(tmp_path / "cold", bundle=bundle, threads=1)
    assert cold.put("a", "one").version == 1 and other.put("a", "two").version == 2
    counted, refresh = list[None](), Catalog.look_now
    monkeypatch.setattr(Catalog, "look_now", lambda catalog: counted.append(refresh(catalog)))
    assert cold.put("a", list(range(9)) * words if words > 9 else "three").version == 3 and len(counted) == reads


def test_ids_are_only_what_are_ids(cold: pltz.Archive) -> None:
    cold.put("a", "text")
    with pytest.raises(pltz.ContentError, match="is a text"):
        cold.get("a").ids  # noqa: B018


# ---- list, find, history, forget, undelete


def test_list(cold: pltz.Archive) -> None:
    cold.put("support/1", "one", tags={"channel": "web"}, time=10)
    cold.put("support/1", "two", tags={"channel": "web"}, time=20)
    cold.put("sales/1", "three", tenant="acme", time=30)
    assert names(cold.list()) == ["sales/1", "support/1"] and names(cold.list("acme")) == ["sales/1"]
    assert [version.version for version in cold.list(history=True)] == [1, 1, 2]
    assert names(cold.list(tags={"channel": "web"})) == ["support/1"]
    assert names(cold.list(tags={"channel": "mail"})) == []
    assert [(v.version, v.time, v.kind) for v in cold.history("support/1")] == [(1, 10, "text"), (2, 20, "text")]


def test_forget_and_undelete(cold: pltz.Archive) -> None:
    for text in ("one", "two", "three"):
        cold.put("s", text)
    [gone] = cold.forget("s", version=3)
    assert gone.version == 3 and gone.forgotten and cold.get("s").value == b"two"
    assert [v.version for v in cold.forget("s")] == [1, 2] and cold.forget("s") == ()
    assert names(cold.list()) == [] and len(list(cold.list(history=True, forgotten=True))) == 3
    with pytest.raises(pltz.NotFound, match="forgotten"):
        cold.get("s")
    assert [(v.version, v.forgotten) for v in cold.undelete("s", version=2)] == [(2, False)]
    assert cold.get("s").value == b"two" and [v.version for v in cold.undelete("s")] == [1, 3]
    with pytest.raises(pltz.NotFound, match="no forgotten versions"):
        cold.undelete("s")
    for call in (cold.forget, cold.undelete, cold.history):
        with pytest.raises(pltz.NotFound, match="no session 'other'"):
            call("other")
    with pytest.raises(pltz.NotFound, match="among 1, 2, 3"):
        cold.forget("s", version=4)


def test_many_are_forgotten_in_one_commit_or_none(cold: pltz.Archive) -> None:
    for name in ("a", "b", "c"):
        cold.put(name, name, tags={"first": name})
    with pytest.raises(pltz.NotFound, match="no session 'other'"):
        cold.forget(["a", "other"])
    assert names(cold.forget(["a", "b"], dry_run=True)) == ["a", "b"] and names(cold.list()) == ["a", "b", "c"]
    packs = cold.stat().packs
    assert names(cold.forget(["a", "b", "a"])) == ["a", "b"] and cold.stat().packs == packs + 1
    assert names(cold.undelete(["b"], dry_run=True)) == ["b"] and names(cold.list()) == ["c"]
    assert cold.forget("c", tags={"first": "a"}) == ()


def test_a_policy_expires_versions(cold: pltz.Archive) -> None:
    for time in (1, 2, 3):
        cold.put("s", f"{time}", time=time)
        cold.put("t", f"{time}", time=time, tenant="acme")
    keep = Policy(keep_last=2)
    assert [(v.tenant, v.version, v.forgotten) for v in cold.expire(keep, dry_run=True)] == [
        ("acme", 1, False),
        ("default", 1, False),
    ]
    assert [(v.name, v.version, v.forgotten) for v in cold.expire(keep, tenant="acme")] == [("t", 1, True)]
    with pytest.raises(pltz.NotFound):
        cold.expire(keep, ["t"])
    assert [v.version for v in cold.expire(Policy(keep_within=0, drop_last=True), "s")] == [1, 2, 3]


# ---- verify, erase


def test_erase_says_what(sealed: pltz.Archive) -> None:
    for name, tenant in (("a", "acme"), ("b", "acme"), ("a", "other")):
        sealed.put(name, [40 + ord(name[0]) % 7, 41, 42] * 20, tenant=tenant)
    for options in ({}, {"name": "a"}, {"tenant": "acme"}, {"name": "a", "tenant": "acme", "everything": True}):
        with pytest.raises(pltz.UsageError, match="either a name or everything"):
            sealed.erase(**options)
    with pytest.raises(pltz.UsageError, match="alone"):
        sealed.erase("a", base="prompts")
    assert sealed.erase("a", tenant="acme", dry_run=True).versions == 1
    assert sealed.get("a", tenant="acme").ids[0] == 40 + ord("a") % 7 and sealed.erase("a", tenant="acme").versions == 1
    with pytest.raises(pltz.NotFound):
        sealed.get("a", tenant="acme")
    assert sealed.erase(tenant="acme", everything=True).versions == 1
    assert names(sealed.list()) == ["a"] and sealed.get("a", tenant="other").kind == "ids"


# ---- thaw


def test_an_archive_closes_with_its_block(tmp_path: Path, bundle: Bundle) -> None:
    with pltz.Archive.open(tmp_path / "cold", create=True, bundle=bundle, threads=1) as cold:
        cold.put("a", "one", tenant="acme")
        cold.put("b", "two", tenant="acme")
        cold.put("c", "three")
        assert repr(cold) == f"<pltz.Archive {tmp_path / 'cold'}>"
    assert repr(cold) == f"<pltz.Archive {tmp_path / 'cold'}, closed>"
    with pytest.raises(UsageError, match="was closed: open it again"):
        cold.get("a", tenant="acme")
    cold.close()
    with pltz.Archive.open(tmp_path / "cold", bundle=bundle, threads=1) as again:
        assert again.get("a", tenant="acme").value == b"one"


@pytest.mark.parametrize(("call", "argument"), [
    (lambda cold: cold.put(BAD, "x"), "a string as name, found float"),
    (lambda cold: cold.put("a", "x", tenant=None), "a string as tenant, found NoneType"),
    (lambda cold: cold.put("a", "x", tags=["red"]), "a mapping of strings to strings as tags, found list"),
    (lambda cold: cold.put("a", "x", tags={"a": 1}), "strings as keys and values of tags, found int"),
    (lambda cold: cold.put("a", "x", base=7), "a string as base, found int"),
    (lambda cold: cold.put("a", "x", time="noon"), "a whole number as time, found str"),
    (lambda cold: cold.put("a", Path("x.jsonl")), "found the path 'x.jsonl'"),
    (lambda cold: cold.put("a", BAD), "found float"),
    (lambda cold: list(cold.put_many([PutRequest(BAD, "x")])), "a string as name"),
    (lambda cold: cold.get(BAD), "a string as name"),
    (lambda cold: cold.get("a", version="1"), "a whole number as version, found str"),
    (lambda cold: list(cold.get_many([BAD])), "a string as names"),
    (lambda cold: cold.history(BAD), "a string as name"),
    (lambda cold: list(cold.list(BAD)), "a string as tenant"),
    (lambda cold: cold.forget(BAD), "a name or several as names"),
    (lambda cold: cold.undelete(["a", BAD]), "a string as names"),
    (lambda cold: pltz.Thawer(cold).thaw(BAD), "a string as name"),
    (lambda cold: pltz.Archive.open(BAD), "a path as place, found float"),
    (lambda cold: pltz.Archive.open("cold", device=BAD), "a string as device"),
    (lambda cold: pltz.Archive.open("cold", threads=BAD), "a whole number as threads"),
    (lambda cold: cold.collect(grace="1d"), "seconds, 0 or more, as grace, found str"),
    (lambda cold: cold.collect(dead_share=20), "a share, 0 to 1, as dead_share, found int"),
    (lambda cold: cold.verify(expect=BAD), "a string as expect"),
    (lambda cold: cold.erase(base=BAD), "a string as base"),
])
def test_a_wrong_type_is_named(call: Callable[[pltz.Archive], object], argument: str, cold: pltz.Archive) -> None:
    with pytest.raises(UsageError, match=f"expected .*{argument}|{argument}"):
        call(cold)
