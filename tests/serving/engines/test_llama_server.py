"""The client of llama-server (serving/engines/llama_server.py), against recorded answers and against a real server.

The second needs its binary: PLTZ_LLAMA_SERVER=/path/to/llama-server python -m pytest -m llama_server
"""

import json
import os
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.models.target.target import Target
from pltz.plt_codec.errors import ContentError, ModelError, TargetMismatch, UsageError
from pltz.serving.engines.llama_server import LlamaServer, fingerprint_gguf
from pltz.serving.engines.llama_slots import read_slot_ids
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook
from pltz.serving.eviction.worker import drain
from tests.archive.towers import SessionArchive
from tests.serving.engines.llama_process import running
from tests.serving.engines.record_llama_server import MESSAGES, OPTIONS, RECORDED, STYLED
from tests.serving.engines.served_models import write_gguf, write_gguf_lora

BINARY = os.environ.get("PLTZ_LLAMA_SERVER", "")
live = [
    pytest.mark.llama_server,
    pytest.mark.skipif(not os.path.isfile(BINARY), reason="needs llama-server: PLTZ_LLAMA_SERVER=/path/to/it"),
]
PROMPT = [2, 10476, 3126, 3164, 3135, 3149, 3182, 3]
ANSWER = [3178, 3731, 3651, 3126, 3122, 6392, 7494, 8004]

# ---- recorded ----


class Replay(BaseHTTPRequestHandler):
    """Answers a call as the real server did; the same path and body, or 500. A slot is saved as it was."""

    calls: list[dict[str, Any]]
    slots: Path
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        for call in self.calls:
            if call["path"] == self.path and _named(call["body"]) == _named(body):
                if "action=save" in self.path:
                    (self.slots / body["filename"]).write_bytes((RECORDED / "slot.bin").read_bytes())
                return self._send(call["status"], json.dumps(call["reply"]).encode())
        self._send(500, b'{"error": {"message": "not recorded"}}')

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Be quiet."""


def _named(body: Any) -> Any:
    return {key: value for key, value in body.items() if key != "filename"} if body else body


@contextmanager
def serving(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # seconds until it sees its end
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / "llama_server.jsonl").read_text("utf8").splitlines()]


@pytest.fixture
def replayed(tmp_path: Path) -> Iterator[LlamaServer]:
    handler = type("Recorded", (Replay,), {"calls": recorded(), "slots": tmp_path})
    with serving(handler) as url:
        yield LlamaServer(url)


def test_a_reply_gives_all_ids_of_the_session(replayed: LlamaServer) -> None:
    ids = replayed.render(MESSAGES)
    assert ids.tolist() == PROMPT
    done = replayed.complete(ids, slot=0, **OPTIONS)
    assert done.ids.tolist() == PROMPT + ANSWER
    assert (done.new, done.slot, done.adapter, done.truncated) == (8, 0, None, False)


def test_a_slot_file_is_read_and_removed(replayed: LlamaServer, tmp_path: Path) -> None:
    assert replayed.slot_ids(0, tmp_path).tolist() == (PROMPT + ANSWER)[:-1] and not list(tmp_path.iterdir())
    assert replayed.erase(0) == 15


def test_a_slot_that_is_none_is_refused_here(replayed: LlamaServer, tmp_path: Path) -> None:
    """llama-server takes the number modulo its slots: it would give another session."""
    for slot in (2, -1):
        with pytest.raises(UsageError, match="from 0 to 1"):
            replayed.slot_ids(slot, tmp_path)
    with pytest.raises(UsageError, match="slot-save-path"):
        replayed.slot_ids(0, tmp_path / "none")
    for slot in (7, -2):
        with pytest.raises(UsageError, match=f"from 0 to 1, found {slot}"):
            replayed.thaw(PROMPT + ANSWER, slot=slot, any_target=True)
        with pytest.raises(UsageError, match=f"from 0 to 1, found {slot}"):
            replayed.complete(PROMPT, slot=slot, **OPTIONS)


def test_a_reply_of_another_slot_is_an_error(tmp_path: Path) -> None:
    """The server may have been started anew, with fewer slots, between the question and the prefill."""
    calls = recorded()
    for call in calls:
        if call["path"] == "/completion" and call["status"] == 200:
            call["reply"]["id_slot"] = 1
    handler = type("Recorded", (Replay,), {"calls": calls, "slots": tmp_path})
    with serving(handler) as url, pytest.raises(ModelError, match="in slot 0, found it in slot 1"):
        LlamaServer(url).thaw(PROMPT + ANSWER, slot=0, any_target=True)


def test_adapters_of_a_request_are_named(replayed: LlamaServer) -> None:
    assert replayed.adapter is None  # the server's own has scale 0
    assert replayed.complete(PROMPT, slot=1, **STYLED).adapter == "style.gguf:0.5"


def test_what_the_server_refuses_is_refused_by_name(replayed: LlamaServer) -> None:
    with pytest.raises(ContentError, match="exceeds the available context size"):
        replayed.thaw([5] * 3000, any_target=True)
    with pytest.raises(ContentError, match="of another tokenizer"):
        replayed.thaw([5, 16384], any_target=True)
    with pytest.raises(ModelError, match="not recorded"):
        replayed.complete([7, 7, 7])
    for ids in ([0.5], [[5]], ["a"], [-1]):
        with pytest.raises(ContentError):
            replayed.thaw(ids, any_target=True)  # type: ignore[arg-type]


def test_weights_that_cannot_be_told_are_refused(replayed: LlamaServer, tmp_path: Path) -> None:
    """The path that the server names is not of this machine."""
    assert replayed.target is None
    with pytest.raises(UsageError, match="name the model"):
        replayed.thaw(PROMPT + ANSWER, slot=0, frozen_for=b"x" * 16)
    with pytest.raises(UsageError, match=r"not known.*any-target"):
        replayed.thaw(PROMPT + ANSWER, slot=0)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    named = LlamaServer(replayed.url, model=tmp_path / "model.gguf")
    with pytest.raises(TargetMismatch):
        named.thaw(PROMPT + ANSWER, slot=0, frozen_for=b"x" * 16)
    assert named.target is not None and named.thaw(PROMPT + ANSWER, slot=0, frozen_for=named.target).tokens == 16


def test_a_fingerprint_covers_every_byte_and_part(tmp_path: Path) -> None:
    names = [f"m-{i:05}-of-00002.gguf" for i in (1, 2)]
    for name in names:
        (tmp_path / name).write_bytes(b"GGUF")
    first = fingerprint_gguf(tmp_path / names[0])
    assert len(first) == 16 and first == fingerprint_gguf(tmp_path / names[1])
    (tmp_path / names[1]).write_bytes(b"GGUG")
    assert fingerprint_gguf(tmp_path / names[0]) != first
    (tmp_path / names[1]).unlink()
    with pytest.raises(UsageError, match="cannot read"):
        fingerprint_gguf(tmp_path / names[0])


@pytest.mark.parametrize(
    "reply", [b"", b"<html>", b"[]", b"null", b"{}", b'{"data": [{"meta": {"n_vocab": "x"}}]}', b"[" * 100_000]
)
def test_another_server_is_told_from_llama_server(reply: bytes) -> None:
    """Whatever answers: a named error."""
    handler = type("Other", (Replay,), {"_answer": lambda self, body: self._send(200, reply)})
    with serving(handler) as url:
        for call in (partial(LlamaServer(url).thaw, [5], any_target=True), partial(LlamaServer(url).erase, 0)):
            with pytest.raises(ModelError):
                call()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "reply",
    [
        b"garbage\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",  # it died in the middle
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"A: b\r\n" * 200 + b"\r\n{}",
        HEAD + b"A: " + b"b" * 70_000 + b"\r\n\r\n{}",
        b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\nzz",
    ],
)
def test_what_is_no_http_is_a_named_error(reply: bytes) -> None:
    class Raw(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(reply)

    with socketserver.TCPServer(("127.0.0.1", 0), Raw) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(ModelError):
            _ = LlamaServer(f"http://127.0.0.1:{server.server_address[1]}", timeout=5).properties
        thread.join()


@pytest.mark.parametrize("row", [{"id": [1]}, {"id": 0, "scale": "x"}, {"id": 0, "scale": 10**400}])
def test_adapters_that_are_none_are_a_named_error(row: dict[str, Any]) -> None:
    reply = json.dumps([{"path": "style.gguf", "scale": 1, **row}]).encode()
    handler = type("Other", (Replay,), {"_answer": lambda self, body: self._send(200, reply)})
    with serving(handler) as url, pytest.raises(ModelError, match="adapters"):
        _ = LlamaServer(url).adapter


def test_a_look_at_all_slots_asks_for_adapters_once() -> None:
    asked: list[str] = []

    class Slots(Replay):
        def _answer(self, body: Any) -> None:
            asked.append(self.path)
            same = {"n_ctx": 8, "is_processing": False}
            rows = [{"id": n, "params": {"lora": [{"id": 0, "scale": n}]}} | same for n in range(3)]
            reply = rows if self.path == "/slots" else [{"id": 0, "path": "a.gguf", "scale": 9}]
            self._send(200, json.dumps(reply).encode())

    with serving(Slots) as url:
        states = LlamaServer(url).slot_states()
    assert [state.adapter for state in states] == [None, "a.gguf:1", "a.gguf:2"]
    assert asked == ["/slots", "/lora-adapters"]


def test_the_key_goes_to_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to where the server sends a client, nor to a proxy of the environment."""
    seen: list[str | None] = []

    class Other(Replay):
        def _answer(self, body: Any) -> None:
            seen.append(self.headers["Authorization"])
            self._send(200, b"")

    with serving(Other) as other:

        class Sends(Other):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", other)
                self.send_header("Content-Length", "0")
                self.end_headers()

        with serving(Sends) as url:
            monkeypatch.setenv("http_proxy", other)
            monkeypatch.delenv("no_proxy", raising=False)
            with pytest.raises(ModelError, match="answers 302"):
                LlamaServer(url, api_key="secret").slot_states()
    assert not seen


def test_no_server_is_a_named_error() -> None:
    with serving(Replay) as url:
        pass
    with pytest.raises(ModelError, match="no answer"):
        LlamaServer(url, timeout=5).thaw([5], any_target=True)
    with pytest.raises(UsageError, match="expected a URL"):
        LlamaServer("file:///etc/passwd")


# ---- a real one ----


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {"model": write_gguf(folder / "mini.gguf"), "lora": write_gguf_lora(folder / "style.gguf")}


@contextmanager
def started(models: dict[str, Path], folder: Path) -> Iterator[LlamaServer]:
    with running(BINARY, models["model"], folder, "--lora-scaled", f"{models['lora']}:0") as url:
        yield LlamaServer(url)


def story(server: LlamaServer) -> np.ndarray[Any, Any]:
    content = " ".join(f"In the year {n} there was a house number {n * 7} by the sea." for n in range(1, 25))
    return server.render([{"role": "user", "content": content}])


GREEDY = {"temperature": 0, "ignore_eos": True}


class TestLive:
    pytestmark = live

    def test_a_frozen_session_goes_on_as_if_nothing_had_been(self, models: dict[str, Path], tmp_path: Path) -> None:
        """Through hook, journal and archive, and over a restart of the server."""
        with started(models, tmp_path) as server:
            prompt = story(server)
            whole = server.complete(prompt, slot=1, n_predict=80, **GREEDY)
            half = server.complete(prompt, slot=0, n_predict=40, **GREEDY)
            assert half.ids.tolist() == whole.ids[: len(half.ids)].tolist()
            tokenizer = Target.load("mini-llama").tokenizer_json
            with EvictionHook.open(tmp_path / "journal", tokenizer=tokenizer) as hook:
                assert hook.on_evict(
                    EvictionRequest("story", half.ids, tenant="acme", target=server.target, adapter=half.adapter)
                )
        cold = SessionArchive.open(tmp_path / "cold", tokenizers=[tokenizer], create=True)
        assert drain(tmp_path / "journal", cold.cold).stored == 1
        found = cold.get_ids("story", "acme")
        with started(models, tmp_path) as server:
            hot = server.thaw(found.ids, slot=0, frozen_for=found.target)
            assert (hot.tokens, hot.cached) == (len(half.ids), 0)
            rest = server.complete(found.ids, slot=0, n_predict=40, **GREEDY)
        assert rest.cached == len(half.ids) - 1  # all but the last, which gives the next one
        assert rest.ids.tolist() == whole.ids.tolist()

    def test_a_slot_gives_the_session_whose_requests_went_past(self, models: dict[str, Path], tmp_path: Path) -> None:
        with started(models, tmp_path) as server:
            whole = server.complete(story(server), slot=0, n_predict=30, **GREEDY)
            ids = server.slot_ids(0, tmp_path)
            assert ids.tolist() == whole.ids[:-1].tolist() and not list(tmp_path.glob("pltz-*"))
            server._call("/slots/0?action=save", {"filename": "kept.bin"})
            kept = (tmp_path / "kept.bin").read_bytes()
            assert read_slot_ids(tmp_path / "kept.bin", server.vocab_size).tolist() == ids.tolist()
            assert (tmp_path / "kept.bin").read_bytes() == kept and server.erase(0) == len(ids)
            assert server.thaw(ids, slot=0, any_target=True).cached == 0
            last = server.complete(ids, slot=0, n_predict=1, **GREEDY)
            assert (last.ids[-1], last.cached) == (whole.ids[-1], len(ids) - 1)

    def test_an_adapter_is_part_of_what_was_frozen(self, models: dict[str, Path], tmp_path: Path) -> None:
        with started(models, tmp_path) as server, EvictionHook.open(tmp_path / "journal") as hook:
            server._call("/lora-adapters", [{"id": 0, "scale": 1.0}])
            plain = server.complete(PROMPT, slot=0, n_predict=8, lora=[{"id": 0, "scale": 0.0}], **GREEDY)
            styled = server.complete(PROMPT, slot=0, n_predict=8, **GREEDY)
            assert (plain.adapter, styled.adapter) == (None, "style.gguf:1")
            assert plain.ids.tolist() != styled.ids.tolist()
            assert hook.on_evict(EvictionRequest("styled", styled.ids, target=server.target, adapter=styled.adapter))
            assert hook.flush(60)
            cold = SessionArchive.open(tmp_path / "cold", create=True)
            assert drain(tmp_path / "journal", cold.cold).stored == 1
            found = cold.get_ids("styled")
            assert server.thaw(found.ids, frozen_for=found.target).tokens == 16
            with pytest.raises(TargetMismatch, match="expected no adapter"):
                server.thaw(plain.ids)
            server._call("/lora-adapters", [{"id": 0, "scale": 0.5}])
            with pytest.raises(TargetMismatch, match=re.escape("style.gguf:0.5")):
                server.thaw(found.ids, frozen_for=found.target)

    def test_it_reads_a_chat_as_the_target_does(self, models: dict[str, Path], tmp_path: Path) -> None:
        with started(models, tmp_path) as server:
            target = Target.load("mini-llama")
            answer = {"role": "assistant", "content": "Täglich.\n\n  3141 times"}
            chat = [{"role": "system", "content": "Be kind."}, *MESSAGES, answer, *MESSAGES]
            assert server.render(chat).tolist() == target.render(chat, add_generation_prompt=True)
