"""The bundle's tokenizer: bytes to token ids and back, exact for every input.

It is a byte-level BPE in the Hugging Face ``tokenizers`` JSON form. Every one of the 256 bytes is a token of
its own, and decoding concatenates the bytes of the tokens. So *any* way to cut a text into tokens decodes to
that text. The rest of the file follows from that:

- Bytes that are not UTF-8 become single-byte tokens; the valid runs between them go through BPE.
- A long text is cut before BPE into blocks of at most ``BLOCK`` bytes (after a line end, else before a space,
  else between two characters). So time and memory stay linear whatever the text is.

    b"hi \\xff!"  ->  BPE("hi "), <byte ff>, BPE("!")

Where a tokenizer splits as those that ship (`SPLIT`), bpe.c codes ASCII, ten times as fast as the library.

Ids 0..31 are specials (``SPECIALS``). They are in the vocabulary, but no text produces them. So a special in
a sequence always means structure (see transcript.py). Ids are permuted so that the class of id i is i >> 7,
hence a vocabulary of a multiple of 128.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pltz.models.bundle import _bpe
from pltz.plt_codec.errors import CorruptError, ModelError

Ids = npt.NDArray[np.int32]

SPECIALS: tuple[str, ...] = (
    *("lane", "system", "user", "assistant", "tool", "message", "meta", "sharegpt"),
    *("list", "text", "developer", "function", "r12", "r13", "r14", "r15"),
    *(f"x{i}" for i in range(16)),
)
"""Names of ids 0..31, in order; in the JSON they are written ``<|name|>``."""

CLASS = 128  # ids per class: the vocabulary is a whole number of classes
BLOCK = 1 << 16  # bytes given to BPE in one piece
BATCH = 1 << 19  # bytes given to the library in one call: an encoding takes some 100 bytes of memory per token
SPAN = 1 << 18  # ids decoded in one piece: one Python int takes 40 bytes
RUNS = 512  # runs of valid UTF-8 in one job: binary data has a run every 4 bytes
MOST = 1 << 16  # ids of a vocabulary that bpe.c takes
SPLIT = (
    r"'(?:[sdmtSDMT]|ll|ve|re|LL|VE|RE)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Splits a text into words, before BPE, in tokenizers that are trained here."""

_SPLITS = [
    {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
]

_ESCAPES = re.compile("[\udc80-\udcff]+")  # characters that the surrogateescape handler leaves for invalid bytes


def byte_alphabet() -> dict[str, int]:
    """Return the byte that each printable character stands for in a byte-level vocabulary (GPT-2's table)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(moved)}


class BundleTokenizer:
    """A tokenizer of bytes, from the bytes of a ``tokenizers`` JSON file.

    ``pieces[i]`` is the bytes of id i (``b""`` for a special), ``lengths`` (ids,) their numbers, and ``size``
    the number of ids. ``specials`` maps each special's bare name to its id. ``fingerprint`` is 16 bytes that
    differ when any byte of the JSON differs.

    Raises:
        ModelError: the JSON is not a tokenizer that codes every byte string exactly.
    """

    def __init__(self, json_bytes: bytes) -> None:
        self.json = json_bytes  # as given, so that it can be shipped on
        from tokenizers import Tokenizer  # imported late: only tokenising needs it

        tree = _parse(json_bytes)
        self.pieces: list[bytes] = _pieces(tree["model"]["vocab"])
        self.size = len(self.pieces)
        self.specials: dict[str, int] = {name: i for i, name in enumerate(SPECIALS)}
        self.fingerprint = hashlib.blake2b(json_bytes, digest_size=16, person=b"pltz tokenizer").digest()
        self.lengths: npt.NDArray[np.int64] = np.array([len(piece) for piece in self.pieces], np.int64)
        self._byte_ids = np.zeros(256, np.int32)
        for i, piece in enumerate(self.pieces):
            if len(piece) == 1:
                self._byte_ids[piece[0]] = i
        try:
            self._bpe = Tokenizer.from_buffer(json_bytes)
        except Exception as exc:  # the library raises bare Exception
            raise ModelError(f"expected a tokenizers JSON file, found one that does not load: {exc}") from exc
        self._merges = _table(tree)
        self._probe()

    def encode(self, data: bytes) -> Ids:
        """Return the ids (T,) of any bytes; ``decode(encode(data)) == data`` always.

        The time is linear in ``len(data)``.
        """
        return self.encode_many([data])[0]

    def encode_many(self, items: Sequence[bytes]) -> list[Ids]:
        """Return the ids (T,) of each item, as ``encode`` gives them, in parallel over all cores."""
        done: list[list[Ids]] = [[] for _ in items]
        for batch in _batches(items):
            spelt = [self._spelt(block) for _, block in batch]
            left = [block for (_, block), ids in zip(batch, spelt, strict=True) if ids is None]
            others = iter(self._encode_blocks(left) if left else ())
            for (item, _), ids in zip(batch, spelt, strict=True):
                done[item].append(next(others) if ids is None else ids)
        return [parts[0] if len(parts) == 1 else np.concatenate([_NONE, *parts]) for parts in done]

    def decode(self, ids: npt.ArrayLike) -> bytes:
        """Return the bytes of a sequence of text ids (T,).

        Raises:
            CorruptError: an id is a special or outside the vocabulary, or the ids are not a flat array of
                integers.
        """
        array = np.asarray(ids)
        if array.size == 0:
            return b""
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise CorruptError(f"expected a flat array of ids, found {array.ndim}-d {array.dtype}")
        low, high = int(array.min()), int(array.max())
        if low < len(SPECIALS) or high >= self.size:
            bad = low if low < len(SPECIALS) else high
            raise CorruptError(f"expected text ids {len(SPECIALS)}..{self.size - 1}, found id {bad}")
        spans = (array[start : start + SPAN].tolist() for start in range(0, array.size, SPAN))
        return b"".join(b"".join(map(self.pieces.__getitem__, span)) for span in spans)

    def _spelt(self, block: bytes) -> Ids | None:
        """Return the ids of a block in ASCII without the library; None where it has to do it."""
        if not self._merges or not block.isascii():
            return None
        ids = _bpe.encode(self._merges, self._byte_ids, block)
        return None if ids is None else np.frombuffer(ids, np.int32).copy()

    def _encode_blocks(self, blocks: Sequence[bytes]) -> list[Ids]:
        """Return the ids of blocks of at most BLOCK bytes, through one call of the library."""
        texts = [block.decode("utf-8", "surrogateescape") for block in blocks]
        jobs: list[list[str]] = []  # each a list of runs, which BPE never joins
        owners: list[int] = []
        for i, text in enumerate(texts):
            runs = [text] if text.isascii() else [run for run in _ESCAPES.split(text) if run]
            for start in range(0, len(runs), RUNS):
                jobs.append(runs[start : start + RUNS])
                owners.append(i)
        encodings = self._bpe.encode_batch_fast(jobs, is_pretokenized=True, add_special_tokens=False)
        found: list[list[int]] = [[] for _ in blocks]
        for i, encoding in zip(owners, encodings, strict=True):
            found[i].extend(encoding.ids)
        return [
            self._splice(np.array(ids, np.int32), text, block)
            for ids, text, block in zip(found, texts, blocks, strict=True)
        ]

    def _splice(self, ids: Ids, text: str, block: bytes) -> Ids:
        """Put the single-byte tokens of a block's invalid bytes between the ids of its valid runs."""
        ends = np.concatenate([[0], np.cumsum(self.lengths[ids])])  # (tokens + 1,) in the valid bytes alone
        points = np.zeros(0, np.uint32)
        if not text.isascii():
            points = np.array([text]).view(np.uint32)  # numpy holds text as code points
        escaped = (points >= 0xDC80) & (points <= 0xDCFF)
        valid = len(block) - int(escaped.sum())
        if ends[-1] != valid or (len(ids) and ids.min() < len(SPECIALS)):
            raise ModelError(f"the tokenizer lost text: {valid} bytes in, {ends[-1]} out")
        if valid == len(block):
            return ids
        widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)  # bytes in UTF-8
        before = np.cumsum(np.where(escaped, 0, widths))[escaped]  # valid bytes before each invalid one
        values = self._byte_ids[points[escaped] - 0xDC00]
        # A run starts and ends with a token, so each invalid byte falls exactly between two.
        return np.insert(ids, np.searchsorted(ends, before), values)

    def _probe(self) -> None:
        """Refuse settings that lose text (a prefix space, a pre-tokenizer that drops its separators)."""
        names = "".join(f"<|{name}|>" for name in SPECIALS)
        text = "a b  c\n\n d\r\n\t 12345 don't \u6f22\u5b57 \U0001f600 " + "".join(map(chr, range(0x250))) + names
        for probe in (text.encode(), b" \n" + text.encode(), bytes(range(256)) * 2):
            if self.decode(self.encode(probe)) != probe:
                raise ModelError("expected a tokenizer that gives every text back, this one changes some")


_NONE: Ids = np.zeros(0, np.int32)


def _batches(items: Sequence[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield all blocks of all items as (item, block), in groups of about BATCH bytes."""
    batch: list[tuple[int, bytes]] = []
    held = 0  # bytes
    for i, data in enumerate(items):
        for block in _blocks(data):
            batch.append((i, block))
            held += len(block) + 64
            if held >= BATCH:
                yield batch
                batch, held = [], 0
    if batch:
        yield batch


def _blocks(data: bytes) -> Iterator[bytes]:
    """Cut data into pieces of at most BLOCK bytes where a token most likely ends."""
    start = 0
    while len(data) - start > BLOCK:
        middle, limit = start + BLOCK // 2, start + BLOCK
        cut = data.rfind(b"\n", middle, limit) + 1
        cut = cut or max(data.rfind(b" ", middle, limit), 0)
        if not cut:
            cut = limit
            while limit - cut < 3 and 0x80 <= data[cut] < 0xC0:  # never inside a valid character
                cut -= 1
        yield data[start:cut]
        start = cut
    if start < len(data):
        yield data[start:]


def _table(tree: dict[str, Any]) -> bytes:
    """Return the merges as bpe.c looks them up; nothing where a text is not split as it does it."""
    vocab, merges = tree["model"]["vocab"], tree["model"]["merges"]
    if (tree.get("pre_tokenizer") or {}).get("pretokenizers") != _SPLITS or len(vocab) > MOST:
        return b""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    return _bpe.table(np.array([(vocab[a], vocab[b], vocab[a + b]) for a, b in pairs], np.int32).tobytes())


def _parse(json_bytes: bytes) -> dict[str, Any]:
    """Return a tokenizer JSON, after checks of every setting that could make it inexact."""
    try:
        tree = json.loads(json_bytes)
        model = tree["model"]
        vocab, merges = model["vocab"], model["merges"]
        wrong = [name for name in ("added_tokens", "normalizer", "truncation", "padding") if tree.get(name)]
        wrong += [name for name in ("dropout", "byte_fallback", "ignore_merges") if model.get(name)]
        wrong += [name for name in ("continuing_subword_prefix", "end_of_word_suffix") if model.get(name)]
        kind = model["type"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ModelError(f"expected a tokenizers JSON file with a BPE model: {exc!r}") from exc
    if kind != "BPE" or not isinstance(vocab, dict) or not isinstance(merges, list):
        raise ModelError(f"expected a BPE model with a vocabulary and merges, found {kind!r}")
    if wrong:
        raise ModelError(f"expected a plain byte-level BPE, found it with {', '.join(wrong)} set")
    _check_merges(merges)
    return cast("dict[str, Any]", tree)


def _check_merges(merges: Iterable[Any]) -> None:
    """Refuse a merge that builds a special out of text."""
    names = {f"<|{name}|>" for name in SPECIALS}
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or not all(isinstance(side, str) for side in pair):
            raise ModelError(f"expected merges of two strings, found {merge!r}")
        if "".join(pair) in names:
            raise ModelError(f"expected specials that no text produces, found a merge to {''.join(pair)}")


def _pieces(vocab: dict[str, Any]) -> list[bytes]:
    """Return the bytes of each id.

    Raises:
        ModelError: the ids are not dense, or a byte has none.
    """
    size = len(vocab)
    if not size or size % CLASS or any(type(i) is not int for i in vocab.values()):
        raise ModelError(f"expected a vocabulary of a multiple of {CLASS} ids, found {size}")
    if sorted(vocab.values()) != list(range(size)):
        raise ModelError(f"expected ids 0..{size - 1}, each once, found gaps or repeats")
    names = sorted(vocab, key=vocab.__getitem__)
    for i, name in enumerate(SPECIALS):
        if names[i] != f"<|{name}|>":
            raise ModelError(f"expected special <|{name}|> at id {i}, found {names[i]!r}")
    alphabet = byte_alphabet()
    try:
        pieces = [bytes(alphabet[char] for char in name) for name in names[len(SPECIALS) :]]
    except KeyError as exc:
        raise ModelError(f"expected byte-level tokens, found one with the character {exc}") from exc
    missing = set(range(256)) - {piece[0] for piece in pieces if len(piece) == 1}
    if missing:
        raise ModelError(f"expected all 256 single bytes in the vocabulary, {len(missing)} are missing")
    if b"" in pieces:
        raise ModelError("expected tokens of at least one byte, found an empty one")
    return [b""] * len(SPECIALS) + pieces
