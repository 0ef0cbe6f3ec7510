"""A thaw over the hot store gives what one prefill of all ids gives, and does no work twice."""

import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pltz import PutRequest
from pltz.archive.errors import NotFound
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.bridged import BridgedCodec
from pltz.kv.calibrate.fitting import Plan, calibrate
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.kv.store.kv_file import KVFile
from pltz.kv.store.kv_folder import IDS, KVFolder
from pltz.kv.store.store import KVStore
from pltz.kv.thaw.thawed import KV_NOISE, Thawed, kv_difference
from pltz.kv.thaw.thawer import Thawer, Wanted
from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.models.session.transcript import conversation_ids, to_tokens
from pltz.models.target.target import ControlTokenWarning, Target
from pltz.plt_codec.errors import ContentError, ModelError, PltzError, TargetMismatch, TokenizerMismatch, UsageError
from tests.archive.towers import SessionArchive, thawer_of
from tests.failing import raising
from tests.kv.store.conftest import chat

NAMES = ["a/0", "a/1", "a/2", "a/3", "a/4", "text", "ids", "meta", "plain"]
ROOM = 8192  # tokens
DISK: Any = {"disk_bytes": 1 << 26}


class Counted:
    """Counts what a thaw does: tokens decoded, ids run through the target, passes."""

    def __init__(self, cold: SessionArchive, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded = self.ran = self.passes = 0
        self.target = target
        assert target.token_bytes  # one pass per target, before the count
        for codec in cold.archive.codecs:
            monkeypatch.setattr(codec, "decode", self._decode(codec.decode))
        monkeypatch.setattr(target, "_run", self._run(target._run))

    def _decode(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def decode(batch: Sequence[Any]) -> Any:
            self.decoded += sum(coded.count for coded in batch)
            return inner(batch)

        return decode

    def _run(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(cache: Any, **inputs: Any) -> Any:
            self.passes += 1
            ids, mask = inputs["input_ids"], inputs.get("attention_mask")
            self.ran += ids.numel() if mask is None else int(mask[:, -ids.shape[1] :].sum())
            return inner(cache, **inputs)

        return run

    def store(self, *room: int, **options: Any) -> KVStore:
        """Return a store of the target. What opening it runs is not counted."""
        hot = KVStore.open(self.target, *room, **options)
        self.take()
        return hot

    def take(self) -> tuple[int, int, int]:
        """(decoded, ran, passes) since the last call."""
        found = self.decoded, self.ran, self.passes
        self.decoded = self.ran = self.passes = 0
        return found


@pytest.fixture
def counted(cold: SessionArchive, kin: Target, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(cold, kin, monkeypatch)


def as_if_new(thawed: Thawed | PltzError, target: Target, ids: Sequence[int] | None = None) -> Thawed:
    """Check a thaw against one prefill of all its ids, and that the target goes on the same."""
    assert isinstance(thawed, Thawed), thawed
    if ids is not None:
        assert thawed.token_ids.tolist() == list(ids)
    cache, logits = target.prefill(thawed.token_ids)
    assert kv_difference(cache, thawed.cache) <= KV_NOISE["float32"]
    assert int(logits.argmax()) == int(thawed.logits.argmax())
    expected = target.generate(cache, thawed.token_ids, 12, logits=logits)
    assert target.generate(thawed.cache, thawed.token_ids, 12, logits=thawed.logits) == expected
    return thawed


def ids_of(cold: SessionArchive, name: str) -> list[int]:
    """What a target with the bundle's tokenizer is given."""
    session = cold.get(name)
    tokens = to_tokens(session, cold.tokenizer)
    return [int(i) for i in (conversation_ids(tokens) if session.kind == "chat" else tokens)]


@pytest.mark.parametrize("room", [None, (ROOM,), (320, 480), (16, ROOM)])
def test_every_session_thaws_as_if_new_however_often(
    cold: SessionArchive, kin: Target, room: tuple[int, ...] | None
) -> None:
    thawer = thawer_of(cold, kin, None if room is None else KVStore.open(kin, *room))
    for name in [*NAMES, *reversed(NAMES)]:
        as_if_new(thawer.thaw(name), kin, ids_of(cold, name))
    assert len(as_if_new(thawer.thaw("a/0", version=1), kin).token_ids) < len(thawer.thaw("a/0").token_ids)


def test_only_what_is_missing_is_decoded_and_prefilled(cold: SessionArchive, kin: Target, counted: Counted) -> None:
    thawer = thawer_of(cold, kin, counted.store(ROOM))
    first = thawer.thaw("a/1")
    decoded, ran, passes = counted.take()
    assert ran == len(first.token_ids) == decoded and passes == 1
    second = thawer.thaw("a/2")
    decoded, ran, passes = counted.take()
    assert 0 < decoded <= ran < decoded + 16 and ran < len(second.token_ids) // 2, "the base is hot"
    again = thawer.thaw("a/2")
    assert counted.take() == (0, 0, 0), "the end of a session is kept, too"
    assert kv_difference(second.cache, again.cache) == 0 and again.logits.equal(second.logits)
    assert thawer.hot is not None
    thawer.hot.discard("other", [1])  # any erasure ends all ends
    thawer.thaw("a/2")
    assert counted.take() == (0, (len(again.token_ids) - 1) % 16 + 1, 1), "what no full block has"


def test_an_older_version_inside_a_hot_tower_runs_its_last_ids_alone(
    cold: SessionArchive, kin: Target, counted: Counted
) -> None:
    thawer = thawer_of(cold, kin, KVStore.open(kin, ROOM))
    thawer.thaw("a/0")
    counted.take()
    first = thawer.thaw("a/0", version=1)
    assert counted.take() == (0, (len(first.token_ids) - 1) % 16 + 1, 1)
    as_if_new(first, kin)


def test_what_many_share_is_decoded_and_prefilled_once(cold: SessionArchive, kin: Target, counted: Counted) -> None:
    wanted = [Wanted(f"a/{n}") for n in (1, 2, 3, 4)]
    thawer = thawer_of(cold, kin, together=1)  # no two in a pass, so nothing is padding
    found = [one for one in thawer.thaw_many(wanted) if isinstance(one, Thawed)]
    decoded, ran, passes = counted.take()
    lengths = [len(one.token_ids) for one in found]
    base = int(np.argmax(found[0].token_ids[: min(lengths)] != found[1].token_ids[: min(lengths)]))
    assert decoded == ran < sum(lengths) - 2 * base and passes == 5
    thawer_of(cold, kin).thaw_many(wanted)
    assert counted.take()[2] < 5, "suffixes of like length share a pass"


@pytest.mark.parametrize("room", [None, ROOM])
def test_calls_for_one_session_at_once_do_the_work_once(
    cold: SessionArchive, kin: Target, counted: Counted, room: int | None
) -> None:
    thawer = thawer_of(cold, kin, None if room is None else counted.store(room))
    asked = _count_admitted(thawer)
    with ThreadPoolExecutor(6) as pool:
        with thawer._working:  # until all have asked
            calls = [pool.submit(thawer.thaw, "a/3") for _ in range(6)]
            while len(asked) < 6:
                time.sleep(0.001)
        found = [call.result() for call in calls]
    assert counted.take()[2] == 1
    for one in found:
        as_if_new(one, kin)
    assert len({id(one.cache) for one in found}) == 6, "each has a cache of its own"


def test_who_is_served_does_not_stay_to_serve_others(cold: SessionArchive, kin: Target) -> None:
    """A call whose session another one thawed returns at once, though a batch waits."""
    thawer = thawer_of(cold, kin)
    asked = _count_admitted(thawer)
    with ThreadPoolExecutor(1) as pool:
        with thawer._working:
            call = pool.submit(thawer.thaw, "a/1")
            while not asked:
                time.sleep(0.001)
            time.sleep(0.05)  # until it waits for its turn to work
            thawer._work()
            late = thawer._admit(Wanted("a/2"))
        as_if_new(call.result(), kin)
    assert not isinstance(late, PltzError) and not late.done.is_set()
    thawer._work()
    assert late.done.is_set()


def _count_admitted(thawer: Thawer) -> list[Any]:
    """Grows by one whenever a call has found its request."""
    admitted: list[Any] = []
    inner = thawer._admit

    def admit(wanted: Wanted) -> Any:
        admitted.append(inner(wanted))
        return admitted[-1]

    thawer._admit = admit  # type: ignore[method-assign]
    return admitted


def test_calls_from_many_threads_are_all_right(cold: SessionArchive, kin: Target) -> None:
    thawer = thawer_of(cold, kin, KVStore.open(kin, 480, 480))

    def call(seed: int) -> list[tuple[str, Thawed]]:
        return [(name, thawer.thaw(name)) for name in np.random.default_rng(seed).permutation(NAMES).tolist()]

    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(call, range(4)):
            for name, thawed in rows:
                as_if_new(thawed, kin, ids_of(cold, name))
    assert thawer._requests == {} and thawer._waiting == []


def test_another_tokenizer_is_rendered_and_kept_hot_as_a_whole(
    cold: SessionArchive, stranger: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(cold, stranger, monkeypatch)
    thawer = thawer_of(cold, stranger, KVStore.open(stranger, ROOM))
    for _ in range(2):
        for name in ("a/1", "text", "meta"):
            session = cold.get(name)
            ids = (
                stranger.render(session.value) if session.kind == "chat" else stranger.tokenize(session.value.decode())
            )
            counted.take()
            thawed, work = thawer.thaw(name), counted.take()
            as_if_new(thawed, stranger, ids)
    assert work == (0, 0, 0)
    with pytest.raises(TokenizerMismatch):
        thawer.thaw("ids")


def test_ids_of_another_tokenizer_that_were_served_thaw_by_segments(
    cold: SessionArchive, stranger: Target, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = Bridge(stranger.tokenizer_json, bundle.tokenizer)
    ids = np.asarray(stranger.tokenize("What was served, and as it was served: " * 9))
    cold.archive.codecs.register(codec := BridgedCodec(bundle, bridge))
    rows = [NewSession(f"served/{n}", [ids[:60], ids[60:] + n], kind="ids", codec=codec) for n in (0, 1)]
    cold.archive.put(rows)
    again = SessionArchive.open(tmp_path / "cold", [bundle])
    thawer = thawer_of(again, stranger, KVStore.open(stranger, ROOM))
    assert thawer.token_ids("served/0").tolist() == ids.tolist()
    counted = Counted(again, stranger, monkeypatch)
    as_if_new(thawer.thaw("served/0"), stranger, ids.tolist())
    counted.take()
    second = thawer.thaw("served/1")
    assert counted.take() == (len(ids) - 60, len(ids) - 48, 1)
    as_if_new(second, stranger, [*ids[:60].tolist(), *(ids[60:] + 1).tolist()])


def test_ids_that_spell_a_chat_are_not_taken_for_it(cold: SessionArchive, kin: Target) -> None:
    """One segment id, two readings: a chat's style is not shown to a target, ids are shown as they are."""
    value = [{"role": "user", "content": "A list has a style token in front."}]
    tokens = to_tokens(Session("chat", value), cold.tokenizer)
    list(cold.put([PutRequest("chat", Session("chat", value)), PutRequest("same", Session("ids", tokens))]))
    leaves = [cold.archive.version(name).leaf for name in ("chat", "same")]
    assert leaves[0] == leaves[1]
    thawer = thawer_of(cold, kin, KVStore.open(kin, ROOM))
    for _ in range(2):
        for name in ("chat", "same"):
            as_if_new(thawer.thaw(name), kin, ids_of(cold, name))
    for one, name in zip(thawer.thaw_many([Wanted("chat"), Wanted("same")]), ("chat", "same"), strict=True):
        as_if_new(one, kin, ids_of(cold, name))


CHANGES: dict[str, Callable[[KVFile], Any]] = {
    "layers": lambda f: {"kv": f.parts["kv"][:1].clone()}, "heads": lambda f: {"kv": f.parts["kv"].repeat(1, 1, 2, 1)},
    "dtype": lambda f: {"kv": f.parts["kv"].double()}, "numbers": lambda f: {"kv": f.parts["kv"] * float("nan")},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_files_with_kv_that_is_not_the_targets_are_misses(
    cold: SessionArchive, kin: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    """Each of its own right checksum: of another process, or of a hand that forged it."""
    hot = KVStore.open(kin, **DISK, folder=tmp_path / "warm")
    expected = thawer_of(cold, kin, hot).thaw("a/1")
    hot.close()
    monkeypatch.setattr("pltz.kv.store.kv_file.finite", lambda tensor: True)
    folder = KVFolder(tmp_path / "warm", hot.folder.space, 1 << 26)  # type: ignore[union-attr]
    for path in (tmp_path / "warm").glob("*/*.raw.safetensors"):
        stored = folder.read(bytes.fromhex(path.name.partition(".")[0]), "raw")
        assert stored is not None
        parts = {**stored.parts, **change(stored)}
        path.unlink()
        assert folder.write(replace(stored, parts=parts))
    for _ in range(2):
        hot = KVStore.open(kin, ROOM, **DISK, folder=tmp_path / "warm")
        found = as_if_new(thawer_of(cold, kin, hot).thaw("a/1"), kin, ids_of(cold, "a/1"))
        assert found.logits.shape == expected.logits.shape
        hot.close()


def test_tokens_of_another_version_under_its_name_are_not_believed(
    cold: SessionArchive, kin: Target, tmp_path: Path
) -> None:
    hot = KVStore.open(kin, **DISK, folder=tmp_path / "warm")
    for name in ("a/1", "a/2"):
        thawer_of(cold, kin, hot).thaw(name)
    hot.close()
    one, other = (tmp_path / "warm").glob(f"*/*.{IDS}.safetensors")
    folder = KVFolder(tmp_path / "warm", hot.folder.space, 1 << 26)  # type: ignore[union-attr]
    names = [bytes.fromhex(path.name.partition(".")[0]) for path in (one, other)]
    files = [folder.read(name, IDS) for name in names]
    for path, own, file in zip((one, other), names, reversed(files), strict=True):
        assert file is not None
        path.unlink()
        assert folder.write(replace(file, name=own))
    for name in ("a/1", "a/2"):
        again = KVStore.open(kin, **DISK, folder=tmp_path / "warm")
        as_if_new(thawer_of(cold, kin, again).thaw(name), kin, ids_of(cold, name))


def test_lossy_kv_is_served_within_a_bound_and_nothing_is_kept_over_it(
    cold: SessionArchive, kin: Target, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).integers(3, kin.vocab_size, (12, 88)).astype(np.int32)
    found = calibrate(kin, rows[:4], rows[4:], Plan(80, 8, 2, tmp_path / "work"))
    embedding: Any = kin.model.get_input_embeddings().weight.detach()
    form = PredictiveCodec(found, Rotary.of(kin), embedding, -24)
    assert form.receipt is not None
    store = KVStore.open(kin, **DISK, folder=tmp_path / "warm", form=form)
    exact = thawer_of(cold, kin, store).thaw("a/1")
    store.drain()
    blocks = store.stats().tiers["disk"].blocks
    assert blocks == len(exact.token_ids) // 16
    again = thawer_of(cold, kin, store).thaw("a/1")
    assert not again.lossy and kv_difference(exact.cache, again.cache) < 1e-4, "from its tokens"
    less = thawer_of(cold, kin, store, max_kl=0.99 * form.receipt.most).thaw("a/1")
    assert not less.lossy and kv_difference(exact.cache, less.cache) < 1e-4
    lossy = thawer_of(cold, kin, store, max_kl=form.receipt.most).thaw("a/1")
    assert lossy.lossy and (lossy.kl, lossy.kl_recall) == (form.receipt.most, form.receipt.most_recall)
    assert 0 < kv_difference(exact.cache, lossy.cache) < 0.6 and lossy.beyond == len(exact.token_ids) - 80
    over = thawer_of(cold, kin, store, max_kl=1.0).thaw("a/2")  # over the base of a/1
    store.drain()
    assert over.lossy and store.stats().tiers["disk"].blocks == blocks, "what is computed over it is not kept"
    pooled = KVStore.open(kin, ROOM, **DISK, folder=tmp_path / "warm", form=form)
    assert thawer_of(cold, kin, pooled, max_kl=1.0).thaw("a/2").lossy
    as_if_new(thawer_of(cold, kin, pooled).thaw("a/2"), kin)  # nor in memory


def test_the_store_of_another_target_is_refused(cold: SessionArchive, kin: Target, stranger: Target) -> None:
    with pytest.raises(UsageError, match="another target"):
        thawer_of(cold, kin, KVStore.open(stranger, 64))


def test_a_session_without_numbers_is_refused_and_none_of_it_is_kept(
    cold: SessionArchive, kin: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = KVStore.open(kin, ROOM)
    thawer, prefill = thawer_of(cold, kin, hot), kin.prefill

    def broken(*args: Any, **options: Any) -> Any:
        cache, logits = prefill(*args, **options)
        return cache, logits * float("nan")

    monkeypatch.setattr(kin, "prefill", broken)
    with pytest.raises(ModelError, match=r"computes no numbers \(NaN\) from this session in torch.float32"):
        thawer.thaw("a/1")
    assert hot.stats().inserted == 0
    monkeypatch.undo()
    as_if_new(thawer.thaw("a/1"), kin)


def test_an_error_is_of_its_session_alone(cold: SessionArchive, kin: Target) -> None:
    list(cold.put([PutRequest("other", Session("ids", np.arange(9)), target=b"another target..")]))
    list(cold.put([PutRequest("long", Session("ids", np.full(3000, 40)))]))
    list(cold.put([PutRequest("empty", Session("chat", {"messages": []}))]))
    thawer = thawer_of(cold, kin, KVStore.open(kin, ROOM))
    names = ["a/1", "nobody", "other", "long", "empty", "a/2"]
    kinds = [type(one) for one in thawer.thaw_many([Wanted(name) for name in names])]
    assert kinds == [Thawed, NotFound, TargetMismatch, ContentError, ContentError, Thawed]
    as_if_new(thawer_of(cold, kin, any_target=True).thaw("other"), kin, range(9))
    with pytest.raises(NotFound):
        thawer.thaw("nobody")


def test_a_failure_of_the_target_reaches_all_who_wait_and_the_next_call_works(
    cold: SessionArchive, kin: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    thawer = thawer_of(cold, kin, KVStore.open(kin, ROOM))
    with monkeypatch.context() as patch:
        patch.setattr(kin, "prefill", raising(RuntimeError("broken")))
        with pytest.raises(RuntimeError, match="broken"):
            thawer.thaw("text")
    as_if_new(thawer.thaw("text"), kin)


def test_a_pass_of_many_that_fails_is_run_one_by_one(
    cold: SessionArchive, kin: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kin, "prefill_many", raising(ModelError("out of memory")))
    for one in thawer_of(cold, kin).thaw_many([Wanted(f"a/{n}") for n in (1, 2, 3)]):
        as_if_new(one, kin)


def test_a_chat_template_that_changed_is_told_before_any_prefill_and_used_where_it_may_be(
    cold: SessionArchive, kin: Target, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(small / "kin", tmp_path / "other")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}")
    other = Target.load(folder)
    list(cold.put([PutRequest("served", cold.get("a/1"), target=kin)]))
    counted = Counted(cold, other, monkeypatch)
    with pytest.raises(TargetMismatch, match="with another chat template: load that target"):
        thawer_of(cold, other).thaw("served")
    assert counted.take() == (0, 0, 0)
    as_if_new(thawer_of(cold, kin).thaw("served"), kin, kin.render(cold.get("a/1").value))
    ids = other.render(cold.get("a/1").value)
    assert ids != ids_of(cold, "a/1")
    as_if_new(thawer_of(cold, other).thaw("a/1"), other, ids)  # kept as text: rendered as this target does


def test_text_that_spells_a_control_token_is_told_at_put_and_thaw(
    cold: SessionArchive, kin: Target, stranger: Target
) -> None:
    spelled = PutRequest("spelled", chat("What does <|assistant|> mean?", "A turn."))
    told = pytest.warns(ControlTokenWarning, match=r"spells <\|assistant\|>, a control token")
    with told:
        list(cold.put([replace(spelled, target=kin)]))
    list(cold.put([replace(spelled, name="kept")]))
    for target in (kin, stranger):
        with told:
            thawer_of(cold, target).thaw("kept")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thawer_of(cold, kin).thaw("a/1")
