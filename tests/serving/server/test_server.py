"""The server over HTTP: sessions that go cold and come back, streams, aborts, and input that is refused."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.requests import ClientDisconnect

import pltz
from pltz.archive.archive import Archive
from pltz.archive.errors import Erased, StoreError
from pltz.kv.errors import PoolFull
from pltz.models.target.target import Target
from pltz.plt_codec.errors import BundleMismatch, ContentError, CorruptError, ModelError, TargetMismatch, UsageError
from pltz.serving.eviction.hook import EvictionHook
from pltz.serving.server import sessions
from pltz.serving.server.answer import Answer
from pltz.serving.server.app import PAGE, EventStream
from pltz.serving.server.ask import Ask
from pltz.serving.server.errors import Refused, failure, status_of
from pltz.serving.server.reply_text import ReplyText
from pltz.serving.server.sessions import digest
from tests.archive.conftest import S3Server
from tests.serving.eviction.opened import eventually
from tests.serving.server.opened import Client, served

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You help people with their orders."}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def endless(target: Target) -> dict[str, Any]:
    """Return fields of a turn that does not end by itself, however long somebody takes to abort it."""
    return {"max_tokens": 6000, "temperature": 2, "logit_bias": {str(one): -100 for one in target.eos_ids}}


@pytest.fixture(scope="module")
def shared(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with served(target, tmp_path_factory.mktemp("served")) as (client, _):
        yield client


def test_a_chat_goes_cold_and_comes_back_without_the_client_noticing(target: Target, tmp_path: Path) -> None:
    """The same turns, with and without a way through the archive, and after a restart, give the same text."""
    turns = [[SYSTEM, user("Where is order 7?")], [user("Can I change the address?")], [user("Thanks!")]]
    fixed = {"max_tokens": 12, "temperature": 0}
    with served(target, tmp_path) as (client, service):
        hot = [client.post(CHAT, messages=turn, session="hot", **fixed) for turn in turns]
        assert client.ask("GET", "/sessions/hot")[1]["tier"] == "hot"
        service.store.clear()  # else the other finds it: KV is named by ids
        cold = []
        for turn in turns[:2]:
            cold.append(client.post(CHAT, messages=turn, session="cold/1", **fixed))
            frozen = client.post("/freeze", session="cold/1")
            assert frozen == {"session": "cold/1", "tier": "cold"} | {
                key: cold[-1]["session"][key] for key in ("tokens", "digest")
            }
        table = client.ask("GET", "/sessions")[1]
        assert {row["session"]: row["tier"] for row in table["sessions"]} == {"hot": "journal", "cold/1": "cold"}
        thawed = client.post("/thaw", session="cold/1")
        assert thawed["tier"] == "hot" and thawed["ms"] > 0
        client.post("/freeze", session="cold/1")
    with served(target, tmp_path) as (client, service):
        cold.append(client.post(CHAT, messages=turns[2], session="cold/1", **fixed))
        assert service.sessions.thaws == 1
        status, text = client.ask("GET", "/metrics")
        assert status == 200 and "pltz_serve_thaws_total 1.0" in text and "pltz_hook_durable" in text
    said = [one["choices"][0]["message"]["content"] for one in hot]
    assert [one["choices"][0]["message"]["content"] for one in cold] == said and all(said)
    assert cold[2]["session"] | {"name": "hot"} == hot[2]["session"]
    # what the archive has is what a client that sends everything would be answered from
    ids = target.render(turns[0], add_generation_prompt=True)
    assert cold[0]["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "where"), [("q8", "sealed"), ("q4", "bucket")])
def test_packed_pages_over_a_sealed_archive_and_a_bucket(
    target: Target, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    """Pages that lose a little may change what is said after a thaw, and never what was said."""
    options: dict[str, Any] = {"kind": kind}
    if where == "sealed":
        options["passphrase"] = "correct horse"
    else:
        for name, value in s3.options.items():
            monkeypatch.setenv(f"AWS_{name.upper()}", value)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        options["place"] = s3.place().url
    said = []
    with served(target, tmp_path, **options) as (client, _):
        for text in ("Where is order 7?", "Can I change the address?"):
            said.append(client.post(CHAT, messages=[user(text)], session="one", max_tokens=8, temperature=0))
            assert client.post("/freeze", session="one")["tier"] == "cold"
    assert said[1]["usage"]["prompt_tokens"] > said[0]["session"]["tokens"]
    with served(target, tmp_path, **options) as (client, _):
        found = client.ask("GET", "/sessions/one")[1]
        assert {key: found[key] for key in ("tokens", "digest")} == {
            key: said[1]["session"][key] for key in ("tokens", "digest")
        }
        assert client.post("/thaw", session="one")["tier"] == "hot"
        last = client.post(CHAT, messages=[user("Thanks!")], session="one", max_tokens=8, temperature=0)
        assert last["usage"]["prompt_tokens"] > found["tokens"] and last["choices"][0]["message"]["content"]


def test_idle_sessions_go_cold_by_themselves(target: Target, tmp_path: Path) -> None:
    with served(target, tmp_path, idle=0.3, new=5) as (client, service):
        assert client.post(COMPLETE, prompt="Once upon a time", temperature=0)["usage"]["completion_tokens"] == 5
        client.post(COMPLETE, prompt="Once upon a time", session="one", max_tokens=4)
        assert eventually(lambda: client.ask("GET", "/sessions")[1]["tiers"]["cold"], 60)
        assert not len(service.store.trie)
        [record] = service.sessions._records.values()
        assert record.ids is None and client.ask("GET", "/sessions/one")[1]["tokens"] == record.tokens > 0


SEALED = pytest.mark.parametrize("key", [{}, {"passphrase": "correct horse"}], ids=["open", "sealed"])


@SEALED
def test_kv_of_idle_sessions_goes_to_files_and_comes_back_after_a_restart(
    target: Target, tmp_path: Path, key: dict[str, str]
) -> None:
    room = {"folder": tmp_path / "kv", "disk_bytes": 1 << 28}
    turns = [[SYSTEM, user("Where is order 7? " * 20)], [user("Can I change the address?")], [user("Thanks!")]]
    said = []
    with served(target, tmp_path, store=room, **key) as (client, service):
        for turn in turns[:2]:
            said.append(client.post(CHAT, messages=turn, session="one", max_tokens=8, temperature=0))
            assert client.post("/freeze", session="one")["tier"] in ("cold", "disk")  # it is written beside
            assert eventually(lambda: client.ask("GET", "/sessions/one")[1]["tier"] == "disk", 60)
        assert client.ask("GET", "/sessions")[1]["tiers"]["disk"] == 1 and not len(service.store.trie)
    with served(target, tmp_path, store=room, **key) as (client, service):
        assert client.ask("GET", "/sessions/one")[1]["tier"] == "disk"
        last = client.post(CHAT, messages=turns[2], session="one", max_tokens=8, temperature=0)
        before = said[1]["session"]["tokens"]
        cached = last["usage"]["prompt_tokens_details"]
        assert before - 17 <= cached["cached_tokens"] <= before and list(cached["cached_from"]) == ["disk"]
        assert "pltz_serve_first_token_seconds_count 1.0" in client.ask("GET", "/metrics")[1]
        assert 'pltz_kv_tier_hit_tokens_total{tier="disk"}' in client.ask("GET", "/metrics")[1]
    with served(target, tmp_path / "other") as (client, _):
        alone = [client.post(CHAT, messages=t, session="one", max_tokens=8, temperature=0) for t in turns]
    assert [one["choices"][0]["message"] for one in alone] == [one["choices"][0]["message"] for one in (*said, last)]


@pytest.mark.parametrize(
    ("key", "kind"), [({}, "raw"), ({"passphrase": "correct horse"}, "raw"), ({}, "q8")], ids=["open", "sealed", "q8"]
)
def test_kv_of_a_session_that_is_erased_or_old_goes_from_files(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: dict[str, Any], kind: str
) -> None:
    """Remove, over a sealed archive, the KV of the whole tenant, whose key goes; in q8 what others may find, too."""
    monkeypatch.setattr("pltz.serving.server.service.AUDIT", 0.2)
    room = {"folder": tmp_path / "kv", "disk_bytes": 1 << 28, "kind": kind}

    def files() -> list[Path]:
        return [path for path in (tmp_path / "kv").glob("*/*.safetensors") if ".centre." not in path.name]

    with served(target, tmp_path, store=room, **key) as (client, service):
        for name in ("one", "two", "hot"):
            client.post(CHAT, messages=[user(f"Who is {name}? " * 130)], session=name, max_tokens=4)
            if name != "hot":
                client.post("/freeze", session=name)
        assert eventually(lambda: len(files()) == 2, 60)
        archive = Archive.open(tmp_path / "cold", bundle="nano", **key)
        assert eventually(lambda: len([*archive.list()]) == 3, 60)
        assert len(service.store.trie) > (2 * 16 if kind == "q8" else 0)
        for name in ("one", "hot"):
            archive.erase(name, tenant="default") if key else archive.forget(name)
        assert eventually(lambda: len(files()) == 1 - len(key), 60)
        left = 16 if kind == "q8" else 0  # of "two"
        assert eventually(lambda: len(service.store.trie) == left, 60), "nor in memory"
        assert [client.ask("GET", f"/sessions/{name}")[0] for name in ("one", "hot", "two")] == [404, 404, 200]
        service.max_age = 0.1
        assert eventually(lambda: not files(), 60)


def test_no_proxy_holds_a_stream_back(shared: Client) -> None:
    link = http.client.HTTPConnection("127.0.0.1", shared.port)
    body = {"prompt": "Once", "max_tokens": 1, "stream": True}
    link.request("POST", COMPLETE, json.dumps(body), {"Content-Type": "application/json; charset=utf-8"})
    found = link.getresponse()
    names = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
    assert {name: found.headers[name] for name in names} == names and found.read().endswith(b"[DONE]\n\n")
    link.close()


def test_a_stream_is_the_answer_in_pieces_and_ends_when_durable(shared: Client) -> None:
    whole = shared.post(CHAT, messages=[user("Tell me more.")], max_tokens=10, temperature=0, session="whole")
    found = list(
        shared.stream(CHAT, messages=[user("Tell me more.")], max_tokens=10, temperature=0, session="pieces",
                      stream_options={"include_usage": True})
    )  # fmt: skip
    text = "".join(one["choices"][0]["delta"].get("content", "") for one in found[:-2])
    assert text == whole["choices"][0]["message"]["content"]
    assert found[-1] == "[DONE]" and found[-2]["usage"] == whole["usage"]
    last = found[-3]
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert last["session"] == whole["session"] | {"name": "pieces"}
    look = shared.ask("GET", "/sessions/pieces")[1]
    assert (look["tokens"], look["digest"]) == (last["session"]["tokens"], last["session"]["digest"])


def test_an_aborted_turn_changes_nothing(shared: Client, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
    before = shared.post(COMPLETE, session="aborted", **asked)["session"]
    stream = shared.stream(COMPLETE, session="aborted", prompt=" and then", **endless(target))
    next(stream)
    assert shared.ask("POST", COMPLETE, {"prompt": "x", "session": "aborted"})[0] == 409
    monkeypatch.setattr(sessions, "GRACE", 60.0)
    stream.close()  # type: ignore[attr-defined]
    # a client that asks again at once waits for its own turn to be gone
    look = shared.post("/thaw", session="aborted")
    assert (look["tokens"], look["digest"]) == (before["tokens"], before["digest"])


def test_a_turn_that_ends_while_another_waits_refuses_that(shared: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not know of the tokens that it would follow."""
    monkeypatch.setattr(sessions, "GRACE", 60.0)
    stream = shared.stream(COMPLETE, prompt="Once", max_tokens=9, session="both", temperature=0)
    waits, codes = threading.Event(), list[int]()
    left, durable = sessions.Sessions._left, EvictionHook.durable

    async def noted(table: sessions.Sessions, name: str) -> None:
        waits.set()
        await left(table, name)

    monkeypatch.setattr(EvictionHook, "durable", lambda hook, ticket: waits.is_set() and durable(hook, ticket))
    next(stream)
    monkeypatch.setattr(sessions.Sessions, "_left", noted)
    thread = threading.Thread(
        target=lambda: codes.append(shared.ask("POST", COMPLETE, {"prompt": "x", "session": "both"})[0])
    )
    thread.start()
    assert list(stream)[-1] == "[DONE]"
    thread.join(300)
    assert codes == [409] and shared.post(COMPLETE, prompt="x", max_tokens=1, session="both")["session"]["tokens"]


def test_likelihoods_are_those_of_the_model(shared: Client, target: Target) -> None:
    asked = {"messages": [user("Where is order 7?")], "max_tokens": 6, "temperature": 0}
    whole = shared.post(CHAT, **asked, logprobs=True, top_logprobs=3)["choices"][0]
    plain = shared.post(CHAT, **asked)["choices"][0]
    assert whole["message"] == plain["message"] and plain["logprobs"] is None
    told = whole["logprobs"]["content"]
    assert "".join(one["token"] for one in told) == whole["message"]["content"]
    ids = target.render(asked["messages"], add_generation_prompt=True)
    new = target.tokenize(whole["message"]["content"])
    with torch.inference_mode():
        scores = target.model(torch.tensor([[*ids, *new]])).logits[0, len(ids) - 1 : -1].double()
    best = torch.log_softmax(scores, 1).topk(3)
    for n, one in enumerate(told):
        assert one["logprob"] == one["top_logprobs"][0]["logprob"] and bytes(one["bytes"]).decode() == one["token"]
        assert [other["logprob"] for other in one["top_logprobs"]] == pytest.approx(best.values[n].tolist(), abs=1e-4)
    events = list(shared.stream(CHAT, **asked, logprobs=True, top_logprobs=3))[:-1]
    streamed = [one for event in events for one in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [one["token"] for one in streamed] == [one["token"] for one in told]


def test_likelihoods_of_parts_of_characters(shared: Client, target: Target) -> None:
    """They have the number of their token in place of a text, since several look alike."""
    parts = [one for one in target.tokenize("😀") if "\ufffd" in target.decode([one])]
    assert parts
    asked = {"prompt": "x", "max_tokens": 2, "temperature": 0, "logit_bias": {str(parts[0]): 100}}
    told = shared.post(COMPLETE, **asked, logprobs=1)["choices"][0]["logprobs"]
    assert told["tokens"] == [f"token_id:{parts[0]}"] * 2 and told["text_offset"] == [0, 0]
    told = shared.post(CHAT, messages=[user("x")], **{**asked, "prompt": None}, logprobs=True)["choices"][0]["logprobs"]
    assert [one["bytes"] for one in told["content"]] == [None, None]


def test_several_answers_are_those_of_their_seeds(shared: Client) -> None:
    asked = {"prompt": "Once upon", "max_tokens": 8, "temperature": 1.5}
    alone = [shared.post(COMPLETE, **asked, seed=seed)["choices"][0]["text"] for seed in (7, 8, 9)]
    found = shared.post(COMPLETE, **asked, seed=7, n=3)
    assert [(one["index"], one["text"]) for one in found["choices"]] == list(enumerate(alone)) and len(set(alone)) == 3
    assert found["usage"]["completion_tokens"] > 8 and found["usage"]["prompt_tokens"] == 2
    texts, ends = ["", "", ""], 0
    events = list(shared.stream(COMPLETE, **asked, seed=7, n=3))
    for event in events[:-1]:
        [choice] = event["choices"]
        texts[choice["index"]] += choice["text"]
        ends += choice["finish_reason"] is not None
    assert texts == alone and ends == 3 and events[-1] == "[DONE]"


def test_fields_that_change_nothing_are_taken(shared: Client) -> None:
    plain = {"user": "u", "metadata": {"a": "b"}, "n": 1, "presence_penalty": 0.0, "logit_bias": {}, "top_k": -1}
    plain |= {"logprobs": False, "tools": None, "store": False, "parallel_tool_calls": True, "stop": None}
    assert shared.post(CHAT, messages=[user("x")], max_tokens=1, **plain)["usage"]["completion_tokens"] == 1


def test_a_client_that_leaves_without_a_stream_cancels_its_turn(target: Target, tmp_path: Path) -> None:
    with served(target, tmp_path) as (client, service):
        link = http.client.HTTPConnection("127.0.0.1", client.port)
        body = {"prompt": "Once upon a time", "session": "left"} | endless(target)
        link.request("POST", COMPLETE, json.dumps(body), {"Content-Type": "application/json"})
        assert eventually(lambda: service.scheduler.counts()["decoding"], 60)
        link.close()
        assert ended(service, 1) == {"cancelled": 1} and client.ask("GET", "/sessions/left")[0] == 404


def replies_of(service: Any, **body: Any) -> Any:
    """Open replies in the event loop of a server, and return them."""
    ask = Ask.of({"prompt": "Once"} | endless(service.target) | body, chat=False, model="mini")
    return asyncio.run_coroutine_threadsafe(service.open(ask), service._loop)


def ended(service: Any, count: int) -> dict[str, int]:
    assert eventually(lambda: sum(service.ends.values()) >= count, 60)
    return dict(service.ends)


def test_replies_that_nobody_reads_are_cancelled(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(target, tmp_path) as (_, service):
        replies = replies_of(service, session="one").result(300)
        stream = EventStream(Answer(False, "mini", target, replies), usage=False)

        async def gone(*_: Any) -> Any:
            raise OSError("the client has left")

        with pytest.raises(ClientDisconnect):
            asyncio.run(stream({"type": "http", "asgi": {"spec_version": "2.4"}}, gone, gone))
        assert ended(service, 1) == {"cancelled": 1}
        submit, turns = service.scheduler.submit, list[Any]()

        def submits(turn: Any) -> None:
            if len(turns) == 2:
                raise ValueError("the third of them")
            turns.append(turn)
            submit(turn)

        monkeypatch.setattr(service.scheduler, "submit", submits)
        with pytest.raises(ValueError, match="third"):
            replies_of(service, n=3).result(300)
        assert ended(service, 3) == {"cancelled": 3} and not service._events


def test_a_thaw_that_is_cancelled_is_told(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(target, tmp_path) as (client, service):
        client.post(COMPLETE, prompt="Once", max_tokens=4, session="one")
        client.post("/freeze", session="one")
        submit = service.scheduler.submit

        def submits(turn: Any) -> None:
            turn.cancelled = True
            submit(turn)

        monkeypatch.setattr(service.scheduler, "submit", submits)
        status, found = client.ask("POST", "/thaw", {"session": "one"})
        assert status == 503 and "cancelled" in found["error"]["message"] and not service._events
        monkeypatch.undo()
        monkeypatch.setattr("pltz.serving.server.service.WAITING", 0)
        assert client.ask("POST", "/thaw", {"session": "one"})[0] == 429


def test_errors_are_those_of_whom_they_are_of() -> None:
    for error, status in (
        (ModelError("x"), 500), (BundleMismatch("x"), 500), (CorruptError("x"), 500), (PoolFull("x"), 503),
        (StoreError("x"), 503), (UsageError("x"), 400), (ContentError("x"), 400), (TargetMismatch("x"), 409),
        (Erased("x"), 410), (Refused(404, "x"), 404),
    ):  # fmt: skip
        kind = "server_error" if status >= 500 else "invalid_request_error"
        assert status_of(error) == status and failure(error)["error"]["type"] == kind


def test_a_fault_of_the_server_has_the_form_of_its_errors(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(target, tmp_path) as (client, service):
        monkeypatch.setattr(service.sessions, "table", lambda: 1 / 0)
        status, found = client.ask("GET", "/sessions")
        assert status == 500 and found["error"]["type"] == "server_error"


def test_a_session_can_be_replaced_and_checked(shared: Client, target: Target) -> None:
    first = shared.post(COMPLETE, prompt="Once upon a time", max_tokens=4, temperature=0, session="two")
    tokens = first["session"]["tokens"]
    wrong = {"prompt": "x", "session": "two", "session_tokens": tokens + 1}
    status, refused = shared.ask("POST", COMPLETE, wrong)
    assert status == 409 and f"has {tokens} tokens" in refused["error"]["message"]
    again = shared.post(COMPLETE, prompt="Once upon a time", max_tokens=4, temperature=0, session="two", append=False)
    assert again["session"] == first["session"]
    status, named = shared.ask("POST", COMPLETE, {"prompt": [5], "max_tokens": 1}, **{"X-Session-ID": "two"})
    assert status == 200 and named["session"]["tokens"] == tokens + 2
    alone = shared.post(COMPLETE, prompt="Once upon a time", max_tokens=4, temperature=0)
    assert "session" not in alone and alone["choices"][0]["text"] == first["choices"][0]["text"]


def test_text_stops_before_a_stop_string(shared: Client, target: Target) -> None:
    fixed = {"prompt": "Once upon a time there was", "max_tokens": 30, "temperature": 0}
    text = shared.post(COMPLETE, **fixed)["choices"][0]["text"]
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    found = shared.post(COMPLETE, **fixed, stop=[stop, "never there"], session="stopped")
    assert found["choices"][0]["text"] == text[: text.find(stop)] and found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] < 30
    ids = target.tokenize("naïve 日本語 😀 text, and more 😀")
    reply = ReplyText(target)
    pieces = [reply.add(one) for one in ids] + [reply.rest()]
    assert "".join(pieces) == "naïve 日本語 😀 text, and more 😀" and not any("\ufffd" in one for one in pieces)


UNFRIENDLY: list[dict[str, Any]] = [  # beside a prompt
    {"n": 17}, {"n": True}, {"n": 2, "session": "one"}, {"logprobs": 21}, {"logprobs": True}, {"presence_penalty": 2.5},
    {"logit_bias": {"5": 101}}, {"logit_bias": {"5": "a"}}, {"logit_bias": {"-5": 1}}, {"logit_bias": {"999999": 1}},
    {"logit_bias": [1]}, {"echo": True}, {"top_k": 5}, {"repetition_penalty": 1.1}, {"sesion": "misspelt"},
    {"max_tokens": 0}, {"max_tokens": 1 << 70}, {"max_tokens": 9000}, {"max_tokens": True}, {"stop": ["a"] * 5},
    {"stop": [""]}, {"seed": -1}, {"session": "a\nb"}, {"session": "a" * 129}, {"session": "\ud800"},
    {"prompt": "\ud800"}, {"prompt": ""}, {"prompt": ["a", "b"]}, {"prompt": [1 << 30]}, {"prompt": [-1]},
    {"session_tokens": 4},
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"{"), (400, b"[" * 100_000), (400, b'{"prompt": "x", "temperature": NaN}'),
        *((400, {"prompt": "x"} | fields) for fields in UNFRIENDLY),
        (404, {"prompt": "x", "model": "other"}), (413, b" " * ((1 << 20) + 1)),
    ],
)  # fmt: skip
def test_unfriendly_bodies_are_refused(shared: Client, status: int, body: Any) -> None:
    found = shared.ask("POST", COMPLETE, body)
    assert found[0] == status and found[1]["error"]["message"]
    assert shared.ask("GET", "/health") == (200, {"ok": True, "trouble": []})


def test_too_long_a_prompt_has_the_code_that_clients_know(shared: Client) -> None:
    for body in ({"prompt": [5] * 9000}, {"prompt": [5] * 8000, "max_tokens": 193}):
        status, found = shared.ask("POST", COMPLETE, body)
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


def test_a_server_may_take_fewer_tokens_than_its_model(target: Target, tmp_path: Path) -> None:
    with served(target, tmp_path, positions=20) as (client, _):
        assert client.ask("GET", "/v1/models")[1]["data"][0]["max_model_len"] == 20
        assert client.post(COMPLETE, prompt=[5] * 16)["usage"]["total_tokens"] <= 20
        status, found = client.ask("POST", COMPLETE, {"prompt": [5] * 16, "max_tokens": 5})
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


def test_other_requests_are_refused(shared: Client) -> None:
    image = [{"role": "user", "content": [{"type": "image_url"}]}]
    for messages in ([], ["x"], [user("x") | {"role": "function"}], image):
        assert shared.ask("POST", CHAT, {"messages": messages})[0] == 400
    assert shared.ask("POST", COMPLETE, {"prompt": "x"}, **{"Content-Type": "text/plain"})[0] == 415
    for path in ("/freeze", "/thaw"):
        assert shared.ask("POST", path, {"session": "nobody"})[0] == 404 and shared.ask("POST", path, [])[0] == 400
    assert shared.ask("GET", "/sessions/nobody")[0] == 404
    [model] = shared.ask("GET", "/v1/models")[1]["data"]
    assert model["id"] == "mini" and isinstance(model["created"], int)
    assert shared.ask("GET", "/v1/models/mini") == (200, model) and model["max_model_len"] == 8192 - 16
    assert shared.ask("GET", "/version") == (200, {"version": pltz.__version__})
    for method, path, status in (("GET", "/v1/models/a/b", 404), ("POST", "/v1/embeddings", 404), ("GET", CHAT, 405)):
        found = shared.ask(method, path, {})
        assert found[0] == status and found[1]["error"]["message"] and found[1]["error"]["code"] == "Refused"
    with pytest.raises(Refused, match="JSON object"):
        Ask.of([], chat=False, model="mini")


def test_what_the_archive_has_of_other_weights_is_refused(target: Target, tmp_path: Path) -> None:
    with served(target, tmp_path) as (client, service):
        service.sessions._archive.put("other", [5, 6, 7], target=b"\1" * 16, tokenizer=target.tokenizer_json)
        status, found = client.ask("POST", COMPLETE, {"prompt": "x", "session": "other"})
        assert status == 409 and found["error"]["code"] == "TargetMismatch"
        assert client.ask("GET", "/sessions")[1]["sessions"] == []


def test_a_journal_that_refuses_acknowledges_nothing(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(target, tmp_path) as (client, service):
        before = client.post(COMPLETE, prompt="Once", max_tokens=4, session="one")["session"]
        monkeypatch.setattr(service.hook, "on_evict", lambda request: 0)
        status, found = client.ask("POST", COMPLETE, {"prompt": "x", "max_tokens": 4, "session": "one"})
        assert status == 503 and "journal" in found["error"]["message"]
        monkeypatch.undo()
        look = client.ask("GET", "/sessions/one")[1]
        assert (look["tokens"], look["digest"]) == (before["tokens"], before["digest"])
        assert client.post(COMPLETE, prompt="x", max_tokens=4, session="one")["session"]["tokens"] > before["tokens"]


def test_a_turn_ends_only_when_it_is_durable(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, written = threading.Event(), threading.Event()
    with served(target, tmp_path) as (client, service):
        durable = service.hook.durable

        def late(ticket: int) -> bool:
            asked.set()
            return written.is_set() and durable(ticket)

        monkeypatch.setattr(service.hook, "durable", late)
        monkeypatch.setattr(service.hook, "flush", lambda timeout: False)
        events = client.stream(COMPLETE, prompt="Once upon a time", max_tokens=3, temperature=0, session="one")
        assert next(events)["choices"][0]["finish_reason"] is None, "text comes before"
        assert asked.wait(30) and client.ask("GET", "/sessions/one")[0] == 404 and service.sessions.acknowledged == 0
        written.set()
        assert list(events)[-1] == "[DONE]" and service.sessions.acknowledged == 1


def test_the_page_is_well_formed_and_loads_nothing_else(shared: Client) -> None:
    status, text = shared.ask("GET", "/")
    assert status == 200 and text == PAGE.read_text("utf8")
    ids: list[str] = []
    open_: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not {"src", "href", "onload", "onclick"} & dict(attrs).keys()
            ids.extend(value or "" for key, value in attrs if key == "id")
            if tag != "meta":
                open_.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_.pop() == tag

    Reader().feed(text)
    assert not open_ and {"hot", "warm", "journal", "cold", "state"} <= set(ids)
    assert "vLLM" in text and "innerHTML" not in text and digest([1]) == digest([1]) != digest([2]) and json.dumps(ids)
