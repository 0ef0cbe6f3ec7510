"""The bridge gives back any ids of any tokenizer, and canonical ids for nothing.

Targets are real tokenizers of the kinds that served models have, trained here on a page of text. Each is small, so
that random ids hit every corner: bytes that are no text, marks in odd places, pieces that cannot follow each other.
"""

import json
import random
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pltz.models import bridge as bridge_module
from pltz.models.bridge import Bridge
from pltz.models.patch import (
    BitReader,
    Edit,
    Vocabulary,
    apply_patch,
    diff,
    encode_edits,
    encode_literal,
    gamma,
    pack_bits,
)
from pltz.models.tokenizer import SPECIALS, BundleTokenizer, _byte_alphabet
from pltz.plt_codec.errors import ContentError, CorruptError, ModelError

PAGE = """A tower of segments is kept in an archive. The archive thaws what the session needs, and nothing else.
You are a helpful assistant. Answer in a few short sentences, and say so when you do not know the answer.
What is the capital of France? The capital of France is Paris, a city on the river Seine; it isn't far from Orléans.
def add(left, right):
    total = left + right
    return total  # the sum of both
{"name": "search", "arguments": {"query": "weather in Berlin", "limit": 10}}
Übung macht den Meister; größere Maße, naïve façade. 你好,世界。这是一个测试。 Привет, мир! 🙂 👩\u200d💻 🇫🇷
The quick brown fox jumps over the lazy dog 1234567890 times, doesn't it? 3.14159 * 2 = 6.28318
Compression and prediction are the same thing: a good predictor, driving an entropy coder, writes few bits.
"""
WORDS = [line.split() for line in PAGE.splitlines()]
SYLLABLES = [a + b for a in ("k", "t", "m", "s", "gr", "pr") for b in ("a", "en", "ul", "ing")]
CHAT_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SENTENCEPIECE_SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def corpus() -> list[str]:
    """The page, and shuffles of its words among made-up ones, so that pieces of all lengths are learnt."""
    rng = random.Random(1)
    lines = [" ".join(rng.sample(line, len(line))) for line in WORDS for _ in range(6)]
    made_up = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(800)]
    return [PAGE, *lines, " ".join(made_up)]


@cache
def bundle() -> BundleTokenizer:
    """A bundle tokenizer of 1024 ids: the 32 specials, then a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [f"<|{name}|>" for name in SPECIALS]
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=names,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    spec = json.loads(tokenizer.to_str())
    assert len(spec["model"]["vocab"]) == 1024
    spec["added_tokens"] = []
    return BundleTokenizer(json.dumps(spec).encode())


def byte_level(*, add_prefix_space: bool = False) -> Tokenizer:
    """GPT-2's kind with ChatML's marks, and two inline tokens as Qwen has them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=CHAT_SPECIALS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(
        [AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)]
    )
    return tokenizer


def llama3() -> Tokenizer:
    """Byte-level after a split by Llama 3's expression; merges ignored for whole pieces; many reserved marks."""
    expression = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    named = ["<|begin_of_text|>", "<|end_of_text|>"] + [f"<|reserved_special_token_{i}|>" for i in range(30)]
    named += ["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
    tokenizer.add_special_tokens(named)
    bos = named[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def _sentencepiece_bpe(normalizer: Any, pre_tokenizer: Any) -> Tokenizer:
    """BPE over whole lines with byte fallback. The trainer cuts at spaces to stay quick; the tokenizer need not."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=SENTENCEPIECE_SPECIALS,
        limit_alphabet=80,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    spec = json.loads(tokenizer.to_str())
    vocab = spec["model"]["vocab"]
    for byte in BYTES:
        vocab.setdefault(byte, len(vocab))
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def llama2() -> Tokenizer:
    """SentencePiece BPE as Llama 2 has it: a normaliser puts the first space."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = _sentencepiece_bpe(normalizer, None)
    return tokenizer


def mistral() -> Tokenizer:
    """SentencePiece BPE whose first space is put at the start of the whole text only."""
    tokenizer = _sentencepiece_bpe(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])
    return tokenizer


def unigram() -> Tokenizer:
    """T5's kind: no byte fallback, an unknown token, compatibility forms and runs of spaces folded away."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    """BERT's kind: lower case, accents stripped, `##` pieces, [UNK]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


MAKERS = {
    "byte-level": byte_level,
    "prefix-space": lambda: byte_level(add_prefix_space=True),
    "llama3": llama3,
    "llama2": llama2,
    "mistral": mistral,
    "unigram": unigram,
    "wordpiece": wordpiece,
}


@cache
def target(kind: str) -> Tokenizer:
    return MAKERS[kind]()


@cache
def bridge(kind: str) -> Bridge:
    return Bridge(target(kind).to_str().encode(), bundle())


KINDS = pytest.mark.parametrize("kind", MAKERS)
EXACT = pytest.mark.parametrize(
    "kind", ["byte-level", "llama3", "llama2", "mistral"]
)  # these keep every text
quick = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def encode(kind: str, text: str) -> list[int]:
    """What the library makes of a text, special tokens recognised, nothing added."""
    return list(target(kind).encode(text, add_special_tokens=False).ids)


def there_and_back(kind: str, ids: list[int]) -> tuple[list[int], bytes]:
    tokens, patch = bridge(kind).to_bundle(ids)
    assert tokens.dtype == np.int32
    back = bridge(kind).from_bundle(tokens, patch)
    assert back.dtype == np.int32 and back.tolist() == ids
    return tokens.tolist(), patch


def mark_id(kind: str, name: str) -> int:
    return target(kind).get_vocab()[name]


def plain(text: str) -> list[int]:
    return list(bundle().encode(text.encode()).tolist())


def x(slot: int) -> int:
    return bundle().specials[f"x{slot}"]


def unfolded(kind: str, ids: list[int], seed: int, rate: float) -> tuple[list[int], int]:
    """Cut pieces in two at random, as a sampler may; also how many."""
    vocabulary = Vocabulary(target(kind).get_vocab(), "##" if kind == "wordpiece" else "")
    rng = random.Random(seed)
    out: list[int] = []
    for i in ids:
        s, known = vocabulary.spelling[i], vocabulary.spelled
        cuts = [k for k in range(1, len(s)) if s[:k] in known and s[k:] in known]
        if cuts and rng.random() < rate:
            k = rng.choice(cuts)
            out += [known[s[:k]], known[s[k:]]]
        else:
            out.append(i)
    return out, len(out) - len(ids)


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


@KINDS
def test_a_page_is_canonical(kind: str) -> None:
    tokens, patch = there_and_back(kind, encode(kind, PAGE))
    assert tokens and patch == b""


def test_a_chat_template_is_text_and_escapes() -> None:
    turns = [("user", "Hi there"), ("assistant", "Hello! How are\nyou?")]
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    tokens, patch = there_and_back("byte-level", encode("byte-level", text + "<|endoftext|>"))
    want: list[int] = []
    for n, (role, content) in enumerate(turns):
        want += [*plain("\n" if n else ""), x(1), *plain(f"{role}\n{content}"), x(3)]
    assert (tokens, patch) == ([*want, *plain("\n"), x(4)], b"")


CHATS = {
    "llama3": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello there<|eot_id|>",
    "llama2": "<s>[INST] Hello there [/INST] I can do that. </s><s>[INST] Do it [/INST]",
    "mistral": "<s>[INST] Hello there[/INST] I can do that.</s>[INST]no space[/INST]",
    "unigram": "What is it?</s>a city on the river</s></s>",
    "wordpiece": "[CLS] hello, is it far? [SEP] it isn't. [SEP]",
    "prefix-space": "<|im_start|>user\nHello there<|im_end|> and so on",
}


@pytest.mark.parametrize("kind", CHATS)
def test_other_templates_need_no_patch(kind: str) -> None:
    tokens, patch = there_and_back(kind, encode(kind, CHATS[kind]))
    assert patch == b"" and sum(i in range(x(0), x(15) + 1) for i in tokens) >= 2


def test_ids_with_the_post_processor_s_mark_need_no_patch() -> None:
    tokens, patch = there_and_back("llama3", list(target("llama3").encode("Hello there").ids))
    assert (tokens, patch) == ([x(0), *plain("Hello there")], b"")


def test_a_first_space_after_a_mark_is_told_apart() -> None:
    start = mark_id("mistral", "<s>")
    with_space = there_and_back("mistral", [start, *encode("mistral", "Hello")])
    without = there_and_back("mistral", encode("mistral", "<s>Hello"))
    assert with_space == ([x(0), *plain(" Hello")], b"") and without == ([x(0), *plain("Hello")], b"")


def test_text_that_spells_a_mark_stays_text() -> None:
    kind = "byte-level"
    ids = encode(kind, "say <|im_") + encode(kind, "end|> now")
    tokens, patch = there_and_back(kind, ids)
    assert tokens == plain("say <|im_end|> now") and len(patch) <= 4
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
    for kind, text in (("wordpiece", "the \u0416\u0416\u0416 capital"), ("unigram", "the cap\u2603ital of")):
        tokens, patch = there_and_back(kind, encode(kind, text))
        assert patch == b"" and tokens.count(x(5)) == 1


# ---- other ids cost a patch


@KINDS
@quick
@given(data=st.data())
def test_any_ids_come_back(kind: str, data: st.DataObject) -> None:
    size = bridge(kind).size
    there_and_back(kind, data.draw(st.lists(st.integers(0, size - 1), max_size=60)))


@KINDS
@quick
@given(data=st.data())
def test_ids_of_a_disturbed_text_come_back(kind: str, data: st.DataObject) -> None:
    ids = encode(kind, data.draw(st.sampled_from(PAGE.splitlines())))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(ids)))
        new = data.draw(st.lists(st.integers(0, bridge(kind).size - 1), max_size=3))
        ids[at : at + data.draw(st.integers(0, 3))] = new
    there_and_back(kind, ids)


@KINDS
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.4])
def test_a_split_costs_at_most_20_bits(kind: str, rate: float) -> None:
    ids, splits = unfolded(kind, encode(kind, PAGE * 20), 3, rate)
    tokens, patch = there_and_back(kind, ids)
    assert splits >= 10
    if tokens or rate < 0.4:  # else the ids of a small vocabulary are cheaper as they are
        assert tokens == bridge(kind).to_bundle(encode(kind, PAGE * 20))[0].tolist()
        assert len(patch) * 8 <= 20 * splits


@KINDS
def test_random_ids_cost_their_width(kind: str) -> None:
    rng = random.Random(7)
    ids = [rng.randrange(bridge(kind).size) for _ in range(3000)]
    _, patch = there_and_back(kind, ids)
    width = (bridge(kind).size - 1).bit_length()
    assert len(patch) * 8 <= width * len(ids) + 64


def test_a_cut_character_costs_little() -> None:
    for kind, most in (("byte-level", 100), ("llama3", 100), ("llama2", 100)):
        ids = encode(kind, PAGE + " \U0001f643")[:-1]
        tokens, patch = there_and_back(kind, ids)
        assert tokens and 0 < len(patch) * 8 <= most


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
    rng = random.Random(5)
    text = encode(kind, PAGE * 520)[:100_000]
    noise = [rng.randrange(bridge(kind).size) for _ in range(50_000)]
    marks = [rng.choice([0, 1, 2, 60]) for _ in range(20_000)]
    start = time.perf_counter()
    for ids in (text, noise, marks, text[:20_000] + noise[:10_000] + text[:20_000]):
        there_and_back(kind, ids)
    assert time.perf_counter() - start < 30  # seconds; about 2 where this was written


# ---- no tokenizer is trusted


class Liar(bridge_module.Dialect):
    """Tokenises a text another way each time."""

    calls = 0

    def ids(self, text: str) -> list[int]:
        self.calls += 1
        return super().ids(text)[self.calls % 2 :]


def test_a_tokenizer_that_changes_its_mind_gets_the_literal_form(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (tokens.tolist(), patch) == (plain(PAGE), b"")
    assert strict.from_bundle(tokens, patch).tolist() == ids


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


def test_no_ids_are_no_tokens() -> None:
    assert there_and_back("byte-level", []) == ([], b"")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"nonsense", b"\xff", b'{"model": {"type": "BPE"}}', b"[" * 100_000]
)
def test_what_is_no_tokenizer_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        Bridge(data, bundle())


@KINDS
@quick
@given(tokens=st.lists(st.integers(-2, 1100), max_size=20), patch=st.binary(max_size=20))
def test_nonsense_is_corrupt_or_harmless(kind: str, tokens: list[int], patch: bytes) -> None:
    try:
        ids = bridge(kind).from_bundle(tokens, patch)
    except CorruptError:
        return
    assert len(ids) <= 40 * len(tokens) + 8 * len(patch)
    assert all(0 <= i < bridge(kind).size for i in ids.tolist())


@KINDS
@quick
@given(data=st.data())
def test_a_flipped_bit_is_corrupt_or_harmless(kind: str, data: st.DataObject) -> None:
    ids, _ = unfolded(kind, encode(kind, PAGE), data.draw(st.integers(0, 5)), 0.2)
    tokens, patch = bridge(kind).to_bundle(ids)
    bit = data.draw(st.integers(0, 8 * len(patch) - 1))
    damaged = (int.from_bytes(patch, "big") ^ 1 << bit).to_bytes(len(patch), "big")
    try:
        bridge(kind).from_bundle(tokens, damaged)
    except CorruptError as exc:
        assert str(exc)


def bits(text: str) -> bytes:
    return pack_bits(text.replace(" ", ""))


EDITS = "0 0000"
DAMAGED = {
    "no_edit": bits(EDITS),
    "no_head": bits("0"),
    "gap_beyond_the_ids": bits(EDITS + gamma(1000)),
    "drop_beyond_the_ids": bits(EDITS + "1 1" + gamma(1000) + "1"),
    "count_beyond_the_patch": bits(EDITS + "1 1 1" + gamma(1 << 30)),
    "number_without_end": bytes(40),
    "literal_of_many": bits("1" + gamma((1 << 32) - 1)) + bytes(9),
    "literal_of_none": bits("1"),
    "literal_beside_tokens": bits("1 1") + bytes(2),
    "piece_of_no_token": bits(EDITS + "1 0" + gamma(3) + "1" + "0" * 40),
    "bits_after_the_end": bits(EDITS + "1 1 1 1") + b"\x01",
    "long_padding": bits(EDITS + "1 1 1" + gamma(2) + "0" * 10) + bytes(3),
}


@pytest.mark.parametrize("defect", DAMAGED)
def test_damaged_patch(defect: str) -> None:
    with pytest.raises(CorruptError):
        bridge("byte-level").from_bundle(plain("Hello world"), DAMAGED[defect])


STREAMS: dict[str, list[int | str]] = {
    "a_bundle_special_in_text": [3],
    "an_id_beyond_the_bundle": [1024],
    "a_negative_id": [-1],
    "an_empty_slot": ["x9"],
    "a_number_without_numbers": ["x15", 40],
}


@pytest.mark.parametrize("defect", STREAMS)
def test_damaged_stream(defect: str) -> None:
    tokens = [x(int(i[1:])) if isinstance(i, str) else i for i in STREAMS[defect]]
    with pytest.raises(CorruptError):
        bridge("byte-level").from_bundle(tokens, b"")


def test_damaged_stream_numbers_and_text() -> None:
    (high,) = bundle().encode(b"\xff").tolist()
    (word,) = plain("the")[-1:]
    for tokens in ([x(15)], [x(15), x(15)], [x(15), high], [x(15), word + 1], [high], [high, x(1)]):
        with pytest.raises(CorruptError):
            bridge("llama3").from_bundle(tokens, b"")


# ---- whose ids they are


def bundle_json(**changes: Any) -> bytes:
    """A tokenizer.json with the bundle's vocabulary."""
    letters = {byte: letter for letter, byte in _byte_alphabet().items()}
    vocab = {"".join(letters[b] for b in piece): i for i, piece in enumerate(bundle().pieces) if piece}
    vocab |= {f"<|{name}|>": i for name, i in bundle().specials.items()}
    tokenizer = Tokenizer(models.BPE(vocab={**vocab, **changes}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().encode()


def test_the_bundle_s_own_ids_pass_through() -> None:
    same = Bridge(bundle_json(), bundle())
    ids = [0, 5, 16, 31, 1023, 40]
    tokens, patch = same.to_bundle(ids)
    assert same.identity and (tokens.tolist(), patch) == (ids, b"")
    assert same.from_bundle(tokens, patch).tolist() == ids
    for bad in ([1024], [-1]):
        with pytest.raises(CorruptError):
            same.from_bundle(bad, b"")
    with pytest.raises(CorruptError):
        same.from_bundle(ids, b"\x00")


def test_another_vocabulary_is_no_identity() -> None:
    assert not Bridge(bundle_json(more=1024), bundle()).identity
    assert not any(bridge(kind).identity for kind in MAKERS)


def test_fingerprint_is_of_the_meaning_not_of_the_layout() -> None:
    text = target("byte-level").to_str()
    tokenizer = Tokenizer.from_str(text)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding()
    layouts = [
        text,
        tokenizer.to_str(),
        json.dumps(json.loads(text), indent=3),
        tokenizer.to_str(pretty=True),
    ]
    prints = {Bridge(layout.encode(), bundle()).fingerprint for layout in layouts}
    assert len(prints) == 1 and {len(p) for p in prints} == {16}
    assert len({bridge(kind).fingerprint for kind in MAKERS}) == len(MAKERS)


def test_slots_follow_from_names_then_ids() -> None:
    pieces = target("llama3").get_added_tokens_decoder()
    tokenizer = bridge_module.Target(target("llama3").to_str().encode())
    names = [pieces[i].content if i >= 0 else None for i in bridge_module.slot_order(tokenizer)]
    assert names[:4] == ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    assert names[4:7] == ["<|end_of_text|>", "<|eom_id|>", "<|python_tag|>"]
    assert names[7:] == [f"<|reserved_special_token_{i}|>" for i in range(30)]


# ---- the format page


FORMAT = (Path(bridge_module.__file__).resolve().parent / "FORMAT.md").read_text(encoding="utf-8")


def test_format_page_s_example() -> None:
    pieces = {f"no {i}": i for i in range(300)}
    for i, piece in ((10, "a"), (20, "hello"), (30, "b"), (21, "hel"), (22, "lo")):
        del pieces[f"no {i}"]
        pieces[piece] = i
    vocabulary = Vocabulary(pieces)
    canonical, real = [10, 20, 30], [10, 21, 22, 30]
    edits = list(diff(canonical, real, vocabulary))
    assert edits == [Edit(1, 1, [21, 22])]
    patch = pack_bits(encode_edits(edits, canonical, vocabulary))
    literal = pack_bits(encode_literal(real, vocabulary))
    assert f"Bytes {patch.hex(' ').upper()}." in FORMAT and f"Bytes {literal.hex(' ').upper()}." in FORMAT
    for stored in (patch, bytes.fromhex("02 48")):
        assert apply_patch(canonical, stored, vocabulary) == apply_patch([], literal, vocabulary) == real


def test_format_page_s_slots() -> None:
    for slot, names in enumerate(bridge_module.SLOT_NAMES):
        (row,) = [line for line in FORMAT.splitlines() if line.startswith(f"| {slot} |")]
        assert " ".join(f"`{name}`" for name in names) in row.replace("\\|", "|")


@quick
@given(st.integers(1, 1 << 32), st.integers(1, 70_000), st.data())
def test_codes_are_read_back(n: int, size: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, size - 1))
    vocabulary = Vocabulary({"top": size - 1})
    reader = BitReader(pack_bits(gamma(n) + vocabulary.raw(i)))
    assert (reader.gamma(), reader.raw(vocabulary)) == (n, i)
    assert reader.at_end() and len(vocabulary.raw(i)) <= max(1, (size - 1).bit_length())


def test_a_vocabulary_of_one_id() -> None:
    one = Vocabulary({"a": 0})
    assert apply_patch([], pack_bits(encode_literal([0] * 9, one)), one) == [0] * 9
    with pytest.raises(CorruptError, match="ids below 1"):
        apply_patch([], bits("1 1 1"), one)


@quick
@given(st.lists(st.integers(0, 7), max_size=60), st.lists(st.integers(0, 7), max_size=60))
def test_edits_turn_any_ids_into_any_others(canonical: list[int], real: list[int]) -> None:
    vocabulary = Vocabulary(
        {piece: i for i, piece in enumerate(["a", "b", "ab", "ba", "aa", "bb", "aba"])} | {"": 7}
    )
    edits = list(diff(canonical, real, vocabulary))
    patch = pack_bits(encode_edits(edits, canonical, vocabulary))
    assert apply_patch(canonical, patch, vocabulary) == real
    assert all(one.start + one.drop <= two.start for one, two in pairwise(edits))
