"""The bridge gives back any ids of any tokenizer, and canonical ids for nothing."""

import json
import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pltz.models.bundle import bridge as bridge_module
from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.tokenizer import byte_alphabet
from pltz.plt_codec.errors import ContentError, CorruptError, ModelError
from tests.models.target_tokenizers import (
    EXACT,
    KINDS,
    MAKERS,
    PAGE,
    bridge,
    bundle,
    encode,
    plain,
    quick,
    target,
    unfolded,
    x,
)


def there_and_back(kind: str, ids: list[int]) -> tuple[list[int], bytes]:
    tokens, patch = bridge(kind).to_bundle(ids)
    assert tokens.dtype == np.int32
    back = bridge(kind).from_bundle(tokens, patch)
    assert back.dtype == np.int32 and back.tolist() == ids
    return tokens.tolist(), patch


def mark_id(kind: str, name: str) -> int:
    return target(kind).get_vocab()[name]


# ---- canonical ids cost nothing


@EXACT
@pytest.mark.parametrize(
    "text", [PAGE, "Hello", "two  spaces\n\n\n\tand a tab ", "", "\x00\x7f\u2028", "de\u0301ja\u0300"]
)
def test_ordinary_text_is_the_bundle_tokens_of_the_text(kind: str, text: str) -> None:
    assert there_and_back(kind, encode(kind, text)) == (plain(text), b"")


@KINDS
def test_text_that_a_tokenizer_folds_is_the_bundle_tokens_of_what_it_keeps(kind: str) -> None:
    line = PAGE.splitlines()[1]
    kept = line.lower() if kind == "wordpiece" else line
    assert there_and_back(kind, encode(kind, line)) == (plain(kept), b"")


@EXACT
@quick
@given(text=st.text())
def test_any_text_is_canonical(kind: str, text: str) -> None:
    assert there_and_back(kind, encode(kind, text.replace("<", "")))[1] == b""


def test_a_chat_template_is_text_and_escapes() -> None:
    turns = [("user", "Hi there"), ("assistant", "Hello! How are\nyou?")]
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    tokens, patch = there_and_back("byte-level", encode("byte-level", text + "<|endoftext|>"))
    want: list[int] = []
    for n, (role, content) in enumerate(turns):
        want += [*plain("\n" if n else ""), x(1), *plain(f"{role}\n{content}"), x(2)]
    assert (tokens, patch) == ([*want, *plain("\n"), x(0)], b"")


def test_a_first_space_after_a_mark_is_told_apart() -> None:
    start = mark_id("mistral", "<s>")
    with_space = there_and_back("mistral", [start, *encode("mistral", "Hello")])
    without = there_and_back("mistral", encode("mistral", "<s>Hello"))
    assert with_space == ([x(1), *plain(" Hello")], b"") and without == ([x(1), *plain("Hello")], b"")


def test_text_that_spells_a_mark_stays_text() -> None:
    kind = "byte-level"
    ids = encode(kind, "say <|im_") + encode(kind, "end|> now")
    tokens, patch = there_and_back(kind, ids)
    assert tokens == plain("say <|im_end|> now") and len(patch) <= 12
    literal = target(kind).__class__.from_str(target(kind).to_str())
    literal.encode_special_tokens = True
    ids = literal.encode("<|im_end|> is no end").ids
    assert there_and_back(kind, ids) == (plain("<|im_end|> is no end"), b"")


def test_inline_tokens_are_their_content() -> None:
    kind, text = "byte-level", "so <tool_call>{}</tool_call> it is"
    assert there_and_back(kind, encode(kind, text)) == (plain(text), b"")
    spelled = encode(kind, PAGE + "so <tool_") + encode(kind, "call>{}" + PAGE)
    tokens, patch = there_and_back(kind, spelled)
    assert tokens == plain(PAGE + "so <tool_call>{}" + PAGE) and 0 < len(patch) <= 24


def test_marks_beyond_the_slots_are_numbered_in_bytes() -> None:
    kind, mark = "llama3", mark_id("llama3", "<|reserved_special_token_29|>")
    tokens, patch = there_and_back(kind, [*encode(kind, "Hello"), mark, mark, *encode(kind, "Hello")])
    assert patch == b"" and tokens.count(x(15)) == 2 and len(tokens) == 2 * len(plain("Hello")) + 4


def test_an_unknown_word_is_an_escape() -> None:
    rows = ("wordpiece", "the \u0416\u0416\u0416 capital", 1), ("unigram", "the cap\u2603ital of", 2)
    for kind, text, slot in rows:
        tokens, patch = there_and_back(kind, encode(kind, text))
        assert tokens.count(x(slot)) == 1 and len(patch) <= (0 if kind == "wordpiece" else 9)  # "▁" before "ital"


# ---- other ids cost a patch


@KINDS
@quick
@given(data=st.data())
def test_any_ids_come_back(kind: str, data: st.DataObject) -> None:
    size = bridge(kind).size
    there_and_back(kind, data.draw(st.lists(st.integers(0, size - 1), max_size=60)))


@KINDS
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.4])
def test_a_split_costs_at_most_9_bytes(kind: str, rate: float) -> None:
    ids, splits = unfolded(kind, encode(kind, PAGE * 20), 3, rate)
    tokens, patch = there_and_back(kind, ids)
    assert splits >= 10
    if tokens or rate < 0.4:  # else the ids of a small vocabulary are cheaper as they are
        assert tokens == bridge(kind).to_bundle(encode(kind, PAGE * 20))[0].tolist() and len(patch) <= 9 * splits


@KINDS
def test_random_ids_cost_their_width(kind: str) -> None:
    rng = random.Random(7)
    ids = [rng.randrange(bridge(kind).size) for _ in range(3000)]
    _, patch = there_and_back(kind, ids)
    assert len(patch) <= 2 * len(ids) + 8


def test_an_id_without_a_token_comes_back() -> None:
    spec = json.loads(target("byte-level").to_str())
    vocab = spec["model"]["vocab"]
    top = max(vocab.values())
    spec["model"]["vocab"] = {piece: i + 5 if i == top else i for piece, i in vocab.items()}
    spec["added_tokens"] = spec["added_tokens"][:3]
    holed = Bridge(json.dumps(spec).encode(), bundle())
    for ids in ([top], [top + 1, top + 5, top], [0, top, 40, top + 2, top + 3]):
        assert holed.from_bundle(*holed.to_bundle(ids)).tolist() == ids


@pytest.mark.parametrize("kind", ["byte-level", "llama2"])
def test_work_is_linear(kind: str) -> None:
    rng, text = random.Random(5), encode(kind, PAGE * 260)[:50_000]
    noise = [rng.randrange(bridge(kind).size) for _ in range(25_000)]
    marks = [rng.choice([0, 1, 2, 60]) for _ in range(10_000)]
    start = time.process_time()
    for ids in (text, noise, marks, text[:10_000] + noise[:5_000] + text[:10_000]):
        there_and_back(kind, ids)
    assert time.process_time() - start < 15  # seconds; about 1 where this was written


# ---- no tokenizer is trusted


class Liar(bridge_module.Dialect):
    """Tokenises a text another way each time."""

    calls = 0

    def ids(self, text: str) -> list[int]:
        self.calls += 1
        return super().ids(text)[self.calls % 2 :]


def test_a_tokenizer_that_changes_its_mind_gets_all_ids_in_the_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "Dialect", Liar)
    liar = Bridge(target("byte-level").to_str().encode(), bundle())
    ids = encode("byte-level", "Hello world")
    tokens, patch = liar.to_bundle(ids)
    assert not tokens.size and liar.from_bundle(tokens, patch).tolist() == ids


def test_a_tokenizer_that_refuses_a_text_is_bridged() -> None:
    pieces = [("\u2581a", -1.0), ("b", -2.0), ("\u2581", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, None))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("b", "?"), decoders.Metaspace()])
    refusing = Bridge(tokenizer.to_str().encode(), bundle())
    for ids in ([0, 1, 2], [1] * 50):
        assert refusing.from_bundle(*refusing.to_bundle(ids)).tolist() == ids


def test_settings_that_cut_pad_or_drop_are_off() -> None:
    tokenizer = Tokenizer.from_str(target("byte-level").to_str())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    spec = json.loads(tokenizer.to_str())
    spec["model"]["dropout"] = 0.5
    strict = Bridge(json.dumps(spec).encode(), bundle())
    ids = encode("byte-level", PAGE)
    tokens, patch = strict.to_bundle(ids)
    assert (tokens.tolist(), patch) == (plain(PAGE), b"") and strict.from_bundle(tokens, patch).tolist() == ids


# ---- bad input has a name


@pytest.mark.parametrize("ids", [[702], [-1], [0, 1 << 40], np.array([5, 900], np.uint64)])
def test_an_id_outside_the_vocabulary_is_named(ids: Any) -> None:
    bad = str(int(np.asarray(ids)[-1]))
    with pytest.raises(ContentError, match=rf"below 702.*id {bad}"):
        bridge("byte-level").to_bundle(ids)


@pytest.mark.parametrize("ids", [[0.5], ["a"], [[1, 2]], 3, [1 << 70], [True]])
def test_what_are_no_ids_is_refused(ids: Any) -> None:
    with pytest.raises(ContentError):
        bridge("byte-level").to_bundle(ids)
    with pytest.raises(CorruptError):
        bridge("byte-level").from_bundle(ids, b"")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"nonsense", b"\xff", b'{"model": {"type": "BPE"}}', b"[" * 100_000]
)
def test_what_is_no_tokenizer_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        Bridge(data, bundle())


# ---- whose ids they are


def bundle_json(**changes: Any) -> bytes:
    """A tokenizer.json with the bundle's vocabulary."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    vocab = {"".join(letters[b] for b in piece): i for i, piece in enumerate(bundle().pieces) if piece}
    vocab |= {f"<|{name}|>": i for name, i in bundle().specials.items()}
    tokenizer = Tokenizer(models.BPE(vocab={**vocab, **changes}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().encode()


def test_the_bundle_s_own_ids_pass_through() -> None:
    same, ids = Bridge(bundle_json(), bundle()), [0, 5, 16, 31, 1023, 40]
    tokens, patch = same.to_bundle(ids)
    assert same.identity and (tokens.tolist(), patch) == (ids, b"") and same.from_bundle(tokens, patch).tolist() == ids
    for bad in ([1024], [-1]):
        with pytest.raises(CorruptError):
            same.from_bundle(bad, b"")
    with pytest.raises(CorruptError):
        same.from_bundle(ids, b"\x00")


def test_fingerprint_is_of_the_meaning_not_of_the_layout() -> None:
    text = target("byte-level").to_str()
    tokenizer = Tokenizer.from_str(text)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding()
    layouts = [text, tokenizer.to_str(), json.dumps(json.loads(text), indent=3), tokenizer.to_str(pretty=True)]
    prints = {Bridge(layout.encode(), bundle()).fingerprint for layout in layouts}
    assert len(prints) == 1 and {len(p) for p in prints} == {16}
    assert len({bridge(kind).fingerprint for kind in MAKERS}) == len(MAKERS)


def test_slots_follow_from_ids() -> None:
    pieces = target("llama3").get_added_tokens_decoder()
    tokenizer = bridge_module.TargetTokenizer(target("llama3").to_str().encode())
    names = [pieces[i].content for i in bridge_module.slot_order(tokenizer)]
    assert names[:4] == ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
    assert names[4:7] == ["<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
    assert names[7:] == [f"<|reserved_special_token_{i}|>" for i in range(30)]
