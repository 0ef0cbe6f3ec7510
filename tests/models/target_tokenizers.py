"""Tokenizers of the kinds that served models have, trained on a page of text, and the bridge of each to a small bundle.

Each is small, so that random ids hit every corner: bytes that are no text, marks in odd places, and pieces that
cannot follow each other.
"""

import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.tokenizer import SPECIALS, BundleTokenizer
from tests.examples import examples

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
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def corpus() -> list[str]:
    """The page, and shuffles of its words among made-up ones, so that pieces of all lengths are learnt."""
    rng = random.Random(1)
    lines = [" ".join(rng.sample(line, len(line))) for line in WORDS for _ in range(6)]
    made_up = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(800)]
    return [PAGE, *lines, " ".join(made_up)]


def learn(tokenizer: Tokenizer, trainer: Any, size: int, specials: list[str], **options: Any) -> None:
    """Train a tokenizer of so many ids on the corpus."""
    made = trainer(vocab_size=size, special_tokens=specials, show_progress=False, **options)
    tokenizer.train_from_iterator(corpus(), made)


@cache
def bundle() -> BundleTokenizer:
    """A bundle tokenizer of 1024 ids: the 32 specials, then a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [f"<|{name}|>" for name in SPECIALS]
    learn(tokenizer, trainers.BpeTrainer, 1024, names, initial_alphabet=ALPHABET)
    spec = json.loads(tokenizer.to_str())
    assert len(spec["model"]["vocab"]) == 1024
    spec["added_tokens"] = []
    return BundleTokenizer(json.dumps(spec).encode())


def byte_level(*, add_prefix_space: bool = False) -> Tokenizer:
    """GPT-2's kind with ChatML's marks, and two inline tokens as Qwen has them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    learn(tokenizer, trainers.BpeTrainer, 700, CHAT_SPECIALS, initial_alphabet=ALPHABET)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return tokenizer


def llama3() -> Tokenizer:
    """Byte-level after a split by Llama 3's expression; merges ignored for whole pieces; many reserved marks."""
    expression = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    expression += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    bytes_of_pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(expression), "isolated"), bytes_of_pieces]
    )
    tokenizer.decoder = decoders.ByteLevel()
    learn(tokenizer, trainers.BpeTrainer, 800, [], initial_alphabet=ALPHABET)
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
    learn(tokenizer, trainers.BpeTrainer, 900, SENTENCEPIECE_SPECIALS, limit_alphabet=80)
    spec = json.loads(tokenizer.to_str())
    vocab = spec["model"]["vocab"]
    for byte in BYTES:
        vocab.setdefault(byte, len(vocab))
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def llama2() -> Tokenizer:
    """SentencePiece BPE as Llama 2 has it: a normaliser puts the first space."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _sentencepiece_bpe(normalizer, None)


def mistral() -> Tokenizer:
    """SentencePiece BPE whose first space is put at the start of the whole text only."""
    tokenizer = _sentencepiece_bpe(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])
    return tokenizer


def unigram() -> Tokenizer:
    """T5's kind: no byte fallback, an unknown token, compatibility forms and runs of spaces folded away."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    learn(tokenizer, trainers.UnigramTrainer, 400, ["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    return tokenizer


def wordpiece() -> Tokenizer:
    """BERT's kind: lower case, accents stripped, `##` pieces, [UNK]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    learn(tokenizer, trainers.WordPieceTrainer, 500, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


MAKERS = {
    "byte-level": byte_level, "prefix-space": lambda: byte_level(add_prefix_space=True), "llama3": llama3,
    "llama2": llama2, "mistral": mistral, "unigram": unigram, "wordpiece": wordpiece,
}


@cache
def target(kind: str) -> Tokenizer:
    return MAKERS[kind]()


@cache
def bridge(kind: str) -> Bridge:
    return Bridge(target(kind).to_str().encode(), bundle())


KINDS = pytest.mark.parametrize("kind", MAKERS)
EXACT = pytest.mark.parametrize("kind", ["byte-level", "llama3", "llama2", "mistral"])  # these keep every text
quick = settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))


def encode(kind: str, text: str) -> list[int]:
    """Return the ids that the library gives a text: special tokens recognised, nothing added."""
    return list(target(kind).encode(text, add_special_tokens=False).ids)


def plain(text: str) -> list[int]:
    return list(bundle().encode(text.encode()).tolist())


def x(slot: int) -> int:
    return bundle().specials[f"x{slot}"]


def unfolded(kind: str, ids: list[int], seed: int, rate: float) -> tuple[list[int], int]:
    """Cut pieces in two at random, as a sampler may; also how many."""
    prefix = "##" if kind == "wordpiece" else ""  # of a piece that goes on in a word; others begin with NUL
    known = {
        piece.removeprefix(prefix) if not prefix or piece.startswith(prefix) else "\0" + piece: i
        for piece, i in target(kind).get_vocab().items()
    }
    spelling = {i: piece for piece, i in known.items()}
    rng = random.Random(seed)
    out: list[int] = []
    for i in ids:
        s = spelling[i]
        cuts = [k for k in range(1, len(s)) if s[:k] in known and s[k:] in known]
        if cuts and rng.random() < rate:
            k = rng.choice(cuts)
            out += [known[s[:k]], known[s[k:]]]
        else:
            out.append(i)
    return out, len(out) - len(ids)
