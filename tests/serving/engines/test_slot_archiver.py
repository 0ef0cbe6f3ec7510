"""Idle slots of llama-server go to the archive by themselves and come back, from their files or by a prefill.

A server of the tests keeps slots in memory and writes slot files. The last test runs llama.cpp's own
(PLTZ_LLAMA_SERVER=/path/to/llama-server python -m pytest -m llama_server).
"""

import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz.plt_codec.errors import ModelError, TargetMismatch, UsageError
from pltz.serving.engines.llama_server import LlamaServer
from pltz.serving.engines.slot_archiver import SlotArchiver
from pltz.serving.engines.slot_keeper import SlotKeeper, digest_ids
from pltz.serving.eviction.hook import EvictionHook
from pltz.serving.eviction.worker import drain
from tests.archive.towers import SessionArchive
from tests.failing import NO_SPACE, raising
from tests.serving.engines.llama_process import running
from tests.serving.engines.served_models import write_gguf
from tests.serving.engines.test_llama_server import BINARY, Replay, live, serving
from tests.serving.eviction.opened import eventually

FIRST, SECOND = list(range(10, 40)), list(range(50, 90))


class Slots(Replay):
    """Serves two slots.

    ``held``: ids of each, ``tasks``, ``busy`` and ``images`` likewise. ``refuses``: slots that it does not save.
    ``prefilled``: ids of each prefill.
    """

    held: list[list[int]]
    tasks: list[int]
    busy: set[int]
    prefilled: list[int]
    folder: Path
    props: dict[str, Any]
    images: set[int]
    refuses: set[int]
    vocab = 1000

    def do_GET(self) -> None:
        if self.path == "/props":
            self._say({"total_slots": 2, **self.props})
        elif self.path == "/v1/models":
            self._say({"data": [{"meta": {"n_vocab": self.vocab}}]})
        elif self.path == "/lora-adapters":
            self._say([])
        else:
            rows: list[dict[str, Any]] = []
            for slot in range(2):
                rows.append({"id": slot, "n_ctx": 512, "is_processing": slot in self.busy})
                if self.tasks[slot] >= 0:
                    rows[-1] |= {"id_task": self.tasks[slot], "n_prompt_tokens": len(self.held[slot])}
            self._say(rows)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/completion":
            slot, ids = max(0, body["id_slot"]), body["prompt"]
            hot = next((n for n, (a, b) in enumerate(zip(self.held[slot], ids, strict=False)) if a != b), None)
            hot = min(len(self.held[slot]), len(ids)) if hot is None else hot
            self.prefilled.append(len(ids) - hot)
            self.held[slot], self.tasks[slot] = ids, max(self.tasks) + 1
            self._say({"id_slot": slot, "tokens_evaluated": len(ids), "timings": {"cache_n": hot, "prompt_ms": 1.0}})
            return
        slot, action = int(self.path.split("/")[2].split("?")[0]), self.path.partition("action=")[2]
        if action == "erase":
            count, self.held[slot] = len(self.held[slot]), []
            self._say({"n_erased": count})
            return
        path = self.folder / body["filename"]
        if slot in self.refuses:
            self._say({"error": {"message": "not now"}}, 400)
        elif action == "save":
            ids = self.held[slot]
            words = [-1, 1, len(ids), *ids, int(slot in self.images)]
            path.write_bytes(struct.pack(f"<4sII{len(words)}i", b"qsgg", 3, len(words), *words) + bytes(20 * len(ids)))
            self._say({"n_saved": len(ids)})
        else:
            data = path.read_bytes()
            count = struct.unpack_from("<i", data, 20)[0]
            self.held[slot] = list(struct.unpack_from(f"<{count}i", data, 24))
            self._say({"n_restored": count})

    def _say(self, reply: object, status: int = 200) -> None:
        self._send(status, json.dumps(reply).encode())


@contextmanager
def served(folder: Path) -> Iterator[tuple[Any, LlamaServer]]:
    slots, model = folder / "slots", folder / "model.gguf"
    slots.mkdir(exist_ok=True)
    if not model.exists():
        model.write_bytes(b"weights")
    state = {
        "held": [[], []], "tasks": [-1, -1], "busy": set(), "prefilled": [], "folder": slots, "images": set(),
        "refuses": set(),
        "props": {"model_path": str(model), "build_info": "b1"},
    }  # fmt: skip
    handler = type("Here", (Slots,), state)
    with serving(handler) as url:
        yield handler, LlamaServer(url)


class Here:
    """A server of the tests with its folder of slots, and a hook whose journal goes into an archive beside them."""

    def __init__(self, root: Path, handler: Any, server: LlamaServer, hook: EvictionHook) -> None:
        self.root, self.handler, self.server, self.hook = root, handler, server, hook

    def archiver(self, anew: bool = False, **options: Any) -> SlotArchiver:
        """Return an archiver of the server. ``anew``: of a client that knows nothing yet."""
        server = LlamaServer(self.server.url) if anew else self.server
        return SlotArchiver(server, self.hook, self.root / "slots", **options)

    def keeper(self, budget: int) -> SlotKeeper:
        return SlotKeeper(self.server, self.root / "slots", budget)

    def archived(self) -> dict[str, list[list[int]]]:
        """Return the versions of all sessions, by tenant and name."""
        self.hook.close()
        cold = SessionArchive.open(self.root / "cold", create=True)
        drain(self.root / "journal", cold.cold)
        found: dict[str, list[list[int]]] = {}
        for version in cold.archive.ls(history=True):
            ids = cold.get_ids(version.name, version.tenant, version=version.version).ids.tolist()
            found.setdefault(f"{version.tenant}/{version.name}", []).append(ids)
        return {name: sorted(versions, key=len) for name, versions in found.items()}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    with served(tmp_path) as (handler, server), EvictionHook.open(tmp_path / "journal") as hook:
        yield Here(tmp_path, handler, server, hook)


def use(handler: Any, slot: int, ids: list[int]) -> None:
    """Let a client run a request past us."""
    handler.held[slot], handler.tasks[slot] = list(ids), max(handler.tasks) + 1


def test_idle_slots_are_archived_once_and_their_sessions_grow(here: Here, tmp_path: Path) -> None:
    handler, archiver = here.handler, here.archiver(idle=0.05)
    use(handler, 0, FIRST)
    assert archiver.look() == []  # it changed just now
    time.sleep(0.06)
    [one] = archiver.look()
    assert (one.slot, one.tokens, one.kept) == (0, 30, False)
    assert archiver.look(idle=0) == []  # once
    use(handler, 1, SECOND)
    handler.busy.add(1)
    assert archiver.look(idle=0) == []  # a request runs
    handler.busy.clear()
    use(handler, 0, [*FIRST, *SECOND])  # its next turn
    both = archiver.look(idle=0)
    assert [found.session == one.session for found in both] == [True, False]
    assert not [*(tmp_path / "slots").iterdir()]  # nothing is kept unless asked for
    assert here.archived() == {
        f"default/{one.session}": [FIRST, [*FIRST, *SECOND]], f"default/{both[1].session}": [SECOND],
    }  # fmt: skip
    assert archiver.status() == {"archived": 3, "refused": 0, "failed": 0, "kept": 0, "kept_bytes": 0}


def test_a_session_returns_from_its_file_and_from_its_ids_without_it(here: Here, tmp_path: Path) -> None:
    handler, archiver = here.handler, here.archiver(keep=1 << 20)
    use(handler, 0, FIRST)
    [one] = archiver.look(idle=0)
    assert one.kept and {path.stat().st_mode & 0o777 for path in (tmp_path / "slots").iterdir()} == {0o600}
    handler.held[0] = []
    again = here.archiver(anew=True, keep=1 << 20)  # after a restart
    hot = again.restore(one.session, np.array([*FIRST, 7]), slot=1, any_target=True)
    assert (hot.slot, hot.tokens, hot.cached, handler.prefilled) == (1, 31, 30, [1]) and handler.held[1] == [*FIRST, 7]
    assert again.look(idle=0) == []  # it is as it was archived
    use(handler, 1, [*FIRST, 7, 8, 9])
    assert [found.session for found in again.look(idle=0)] == [one.session]

    for path in (tmp_path / "slots").iterdir():
        path.unlink()
    handler.held = [[], []]
    hot = again.restore(one.session, np.array(FIRST), slot=0, any_target=True)
    assert (hot.cached, handler.prefilled[-1], handler.held[0]) == (0, 30, FIRST)


def test_no_slot_is_named_by_what_another_tenant_restored(here: Here) -> None:
    """A client whose prompt begins like a restored session of another tenant got its name, and wrote its next version.

    So did the session of another tenant that was restored into a claimed slot.
    """
    handler, archiver = here.handler, here.archiver()
    hot = archiver.restore("chat-7", np.array(FIRST), tenant="acme", slot=0, any_target=True)
    use(handler, 0, [*FIRST, 1, 2])  # of anybody
    [stranger] = archiver.look(idle=0)
    assert stranger.tenant == "default" and stranger.session != "chat-7"
    archiver.claim(hot.slot, "chat-7", tenant="acme")
    use(handler, 0, [*FIRST, 3])  # its own next turn
    assert [(one.session, one.tenant) for one in archiver.look(idle=0)] == [("chat-7", "acme")]
    archiver.restore("mail-1", np.array(SECOND), tenant="bolt", slot=0, any_target=True)
    use(handler, 0, [*SECOND, 4])
    [after] = archiver.look(idle=0)
    assert after.tenant == "default" and after.session not in ("chat-7", "mail-1")
    archiver.claim(0, "mail-1", tenant="bolt")
    archiver.restore("mail-1", np.array(SECOND), tenant="bolt", slot=0, any_target=True)
    use(handler, 0, [*SECOND, 5])
    assert [(one.session, one.tenant) for one in archiver.look(idle=0)] == [("mail-1", "bolt")]
    assert here.archived()["acme/chat-7"] == [[*FIRST, 3]]


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["bit", "cut", "ids", "model", "build", "variant", "note", "adapter"])
def test_a_file_that_is_not_right_is_not_restored(here: Here, tmp_path: Path, what: str) -> None:
    handler = here.handler
    use(handler, 0, FIRST)
    [one] = here.archiver(keep=1 << 20).look(idle=0)
    [slot_file], [note] = ([*(tmp_path / "slots").glob(f"*.{end}")] for end in ("slot", "json"))
    ids, variant = np.array(FIRST), ""
    if what == "bit":
        changed(slot_file)
    elif what == "cut":
        slot_file.write_bytes(slot_file.read_bytes()[:-1])
    elif what == "ids":
        ids[3] = 900
    elif what == "model":
        (tmp_path / "model.gguf").write_bytes(b"other weights")
    elif what == "build":
        handler.props["build_info"] = "b2"
    elif what == "variant":
        variant = "--rope-freq-scale 0.5"
    elif what == "adapter":
        note.write_text(note.read_text().replace("null", '\\"style.gguf:1\\"'))
        assert "style" in json.loads(note.read_text())["served"]
    else:
        note.write_text("[]")
    handler.held[0] = []
    archiver = here.archiver(anew=True, keep=1 << 20, variant=variant)
    hot = archiver.restore(one.session, ids, slot=0, any_target=True)
    assert (hot.cached, handler.prefilled, handler.held[0]) == (0, [30], ids.tolist())
    assert slot_file.exists() == (what not in ("bit", "cut"))


def test_a_server_that_was_started_with_other_weights_gets_its_own_name(here: Here, tmp_path: Path) -> None:
    handler, archiver = here.handler, here.archiver(keep=1 << 20)
    use(handler, 0, FIRST)
    [one] = archiver.look(idle=0)
    before = here.server.target
    (tmp_path / "model.gguf").write_bytes(b"other weights")
    archiver.look()
    assert here.server.target != before
    with pytest.raises(TargetMismatch):
        archiver.restore(one.session, np.array(FIRST), frozen_for=before)
    assert handler.prefilled == []


def test_the_files_keep_a_budget(here: Here) -> None:
    handler, keeper = here.handler, here.keeper(2000)
    for number in range(4):
        use(handler, 0, [*range(number, number + 30)])
        name = f"chat {number}", "acme"
        ids, kept = keeper.save(here.server.slot_state(0), lambda ids, name=name: name)  # type: ignore[misc]
        assert kept is not None and kept.ids == digest_ids(ids)
        time.sleep(0.01)
        assert sum(path.stat().st_size for path in keeper.folder.glob("*.slot")) <= 2000
    assert [kept.session for kept in keeper.kept()] == ["chat 2", "chat 3"]
    use(handler, 0, [*range(200)])
    assert keeper.save(here.server.slot_state(0), lambda ids: ("long", "acme"))[1] is None
    assert [kept.session for kept in keeper.kept()] == ["chat 2", "chat 3"]
    assert {path.suffix for path in keeper.folder.iterdir()} == {".slot", ".json"}


def test_slot_that_the_hook_refuses_is_tried_again_and_not_chosen(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as archived: nobody tried it again, and a session that returned took its slot."""
    handler, archiver = here.handler, here.archiver()
    use(handler, 0, FIRST)
    use(handler, 1, SECOND)
    with monkeypatch.context() as full:
        full.setattr(here.hook, "on_evict", lambda request: 0)
        assert archiver.look(idle=0) == [] and archiver.refused == 2
    assert archiver._choice() == -1
    assert len(archiver.look(idle=0)) == 2 and here.hook.flush() and archiver._choice() >= 0


def test_a_session_that_returns_takes_no_slot_that_nobody_else_has(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took slots with images, those that the server refused to save, and those whose ids were on no disk yet."""
    handler, archiver = here.handler, here.archiver()
    use(handler, 0, FIRST)
    use(handler, 1, SECOND)
    handler.images.add(0)
    handler.refuses.add(1)
    assert archiver.look(idle=0) == [] and archiver.failed == 1 and archiver._choice() == -1
    handler.refuses.clear()
    with monkeypatch.context() as slow:
        slow.setattr(here.hook, "durable", lambda ticket: False)
        assert [one.slot for one in archiver.look(idle=0)] == [1] and archiver._choice() == -1
    use(handler, 1, [*SECOND, 1])
    hot = archiver.restore("chat", np.array([1, 2, 3]), any_target=True)
    assert hot.slot == 1 and any([*SECOND, 1] in versions for versions in here.archived().values())


def test_a_slot_that_a_request_used_while_it_was_saved_is_saved_again(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapters of the request before were said of it, in the note of its file and in the archive."""
    handler, archiver = here.handler, here.archiver(keep=1 << 20)
    use(handler, 0, FIRST)
    saves = here.server.save_slot

    def late(slot: int, name: str) -> int:
        use(handler, 0, SECOND)
        return saves(slot, name)

    with monkeypatch.context() as raced:
        raced.setattr(here.server, "save_slot", late)
        assert archiver.look(idle=0) == [] and archiver.failed == 1
    assert not [*(tmp_path / "slots").iterdir()] and [one.tokens for one in archiver.look(idle=0)] == [40]


def test_an_emptied_slot_is_no_failure(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    handler, archiver = here.handler, here.archiver()
    use(handler, 0, FIRST)
    states = here.server.slot_states()
    handler.held[0] = []
    monkeypatch.setattr(here.server, "slot_states", lambda: states)
    assert archiver.look(idle=0) == [] and archiver.failed == 0


def test_images_are_refused_and_a_server_that_is_gone_is_waited_for(here: Here, tmp_path: Path) -> None:
    handler, archiver = here.handler, here.archiver()
    use(handler, 0, FIRST)
    handler.images.add(0)
    assert archiver.look(idle=0) == [] and archiver.look(idle=0) == []
    assert archiver.status()["refused"] == 1 and here.hook.status()["refused"] == {"multimodal": 1}
    here.server.url = "http://127.0.0.1:9"
    assert archiver.look() == [] and archiver.status()["failed"] == 1
    with pytest.raises(ModelError):
        here.archiver(anew=True, keep=1)


def test_a_thread_looks_and_the_end_archives_what_is_not_idle_yet(here: Here) -> None:
    handler, archiver = here.handler, here.archiver(idle=0.01, poll=0.01)
    archiver.start()
    use(handler, 0, FIRST)
    assert eventually(lambda: archiver.archived, 60)
    archiver._idle = 1e9
    use(handler, 1, SECOND)
    archiver.close()
    assert archiver.archived == 2
    assert sorted(len(ids) for versions in here.archived().values() for ids in versions) == [30, 40]


def test_what_cannot_be_is_refused(here: Here, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="slot-save-path"):
        SlotArchiver(here.server, here.hook, tmp_path / "none")
    with pytest.raises(UsageError, match="idle"):
        here.archiver(poll=0)
    for session, tenant in (("", None), ("a" * 1025, None), ("chat", "b" * 1025)):
        with pytest.raises(UsageError, match="names"):  # the journal refused them later, when nobody looked
            here.archiver().claim(0, session, tenant)
    with pytest.raises(UsageError, match="slot from 0 to 1"):
        here.server.slot_state(2)
    (tmp_path / "model.gguf").unlink()
    with pytest.raises(UsageError, match="name its file"):
        here.archiver(anew=True, keep=1)


def test_a_note_of_another_session_is_none(here: Here) -> None:
    """It counted in the budget, and its room was made by removing the file of the session that it named."""
    handler, keeper = here.handler, here.keeper(2000)
    use(handler, 0, FIRST)
    keeper.save(here.server.slot_state(0), lambda ids: ("chat", "acme"))
    whole, other = (keeper._path(session, "acme") for session in ("chat", "other"))
    for end in (".slot", ".json"):
        other.with_suffix(end).write_bytes(whole.with_suffix(end).read_bytes())
    assert [one.session for one in keeper.kept()] == ["chat"]
    assert keeper.restore("other", np.array(FIRST), 1, tenant="acme") == 0 and handler.held[1] == []


def test_a_pipe_in_place_of_a_slot_file_holds_up_nobody(here: Here) -> None:
    handler, keeper = here.handler, here.keeper(2000)
    use(handler, 0, FIRST)
    keeper.save(here.server.slot_state(0), lambda ids: ("chat", "acme"))
    at = keeper._path("chat", "acme")
    at.with_suffix(".slot").unlink()
    os.mkfifo(at.with_suffix(".slot"))
    note = json.loads(at.with_suffix(".json").read_text())
    at.with_suffix(".json").write_text(json.dumps(note | {"size": 0}))
    assert keeper.restore("chat", np.array(FIRST), 1, tenant="acme") == 0 and not [*keeper.folder.iterdir()]


def test_a_disk_that_fails_leaves_no_file_that_nobody_counts(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot file stayed without a note, beside the budget, where the disk was full already."""
    handler, keeper = here.handler, here.keeper(2000)
    use(handler, 0, FIRST)
    monkeypatch.setattr(Path, "write_text", raising(NO_SPACE))
    assert keeper.save(here.server.slot_state(0), lambda ids: ("chat", "acme"))[1] is None
    assert not [*keeper.folder.iterdir()]


@pytest.mark.parametrize("marked", [pytest.param(None, marks=live)])
def test_a_real_server_is_archived_and_goes_on_as_if_it_had_never_left(tmp_path: Path, marked: None) -> None:
    """Talk to a server past us, let the archiver take its slots, restart the server, and go on from file and ids."""
    model = write_gguf(tmp_path / "model.gguf")
    slots = tmp_path / "slots"
    slots.mkdir()
    options = {"n_predict": 24, "temperature": 0, "ignore_eos": True}
    with EvictionHook.open(tmp_path / "journal") as hook:
        with running(BINARY, model, slots) as url:
            client = LlamaServer(url)  # of a user
            whole = client.complete("Tell me about the sea, please. " * 12, slot=0, **{**options, "n_predict": 48})
            client.erase(0)
            half = client.complete("Tell me about the sea, please. " * 12, slot=0, **options)
            client.complete("And the mountains?", slot=1, **options)
            archiver = SlotArchiver(LlamaServer(url), hook, slots, idle=0.01, poll=0.01, keep=1 << 28)
            archiver.start()
            assert eventually(lambda: archiver.archived == 2, 60)
            archiver.close()
            assert {**archiver.status(), "kept_bytes": 0} == {
                "archived": 2, "refused": 0, "failed": 0, "kept": 2, "kept_bytes": 0,
            }  # fmt: skip
        [name] = [kept.session for kept in archiver._keeper.kept() if kept.tokens == len(half.ids) - 1]
        assert hook.flush(60)
        cold = SessionArchive.open(tmp_path / "cold", create=True)
        drain(tmp_path / "journal", cold.cold)
        found = cold.get_ids(name)
        assert found.ids.tolist() == half.ids[:-1].tolist()
        with running(BINARY, model, slots) as url:
            for keep in (1 << 28, 0):
                server = LlamaServer(url)
                archiver = SlotArchiver(server, hook, slots, keep=keep)
                if not keep:
                    archiver._keeper.forget(name)
                hot = archiver.restore(name, found.ids, slot=1 if keep else 0, frozen_for=found.target)
                assert hot.cached == (len(found.ids) - 1 if keep else 0)  # the last one is run again for its logits
                reply = server.complete(half.ids, slot=hot.slot, **options)
                assert reply.cached == len(half.ids) - 1 and reply.ids.tolist() == whole.ids.tolist()
                print(json.dumps({"tokens": hot.tokens, "cached": hot.cached, "ms": hot.total_ms}))
