"""Bridge: token ids of any Hugging Face tokenizer to bundle tokens and back, exactly.

The decoder bundle predicts its own tokens, but sessions arrive as ids of the served model's tokenizer (the
*target*). The bridge spells the ids as text, and the reader tokenises that text again. The tokenizer's own
tokenisation of the text is the *canonical* one and costs nothing. Each place where the real ids differ (a
sampled split, half a character, random ids) costs a *patch* of a few bytes.

    ids     <|im_start|>   Hel lo ▁world   <|im_end|>      as sampled
    bundle  <|x1|>         Hello world     <|x2|>          bundle tokens of the text; marks as escapes
    patch   "1 id on, 1 id gives way to these 2"

Marks (special tokens and the unknown token) stand for no text. They become the bundle's 16 escapes, in an
order that follows from the tokenizer alone. Text that merely spells a mark stays text. The span between two
marks is tokenised by itself, as the `tokenizers` library does it.

Coding the ids as they are would need every target's vocabulary in the bundle. No tokenizer gives back every
id sequence, so `to_bundle` reads back its own output. Where that fails, or costs more, it keeps all ids in
the patch, and no bundle tokens.

FORMAT.md specifies the stored bytes. All work is linear in the ids.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pltz.models.bundle.patch import Edit, apply_patch, diff, encode_edits
from pltz.models.bundle.tokenizer import BundleTokenizer, byte_alphabet
from pltz.plt_codec.errors import ContentError, CorruptError, ModelError

T = TypeVar("T")
Ids = npt.NDArray[np.int32]
Json = Any

FINGERPRINT_SIZE = 16  # bytes
ESCAPES = 16  # bundle specials x0 .. x15
SLOTS = ESCAPES - 1  # marks with an escape of their own; x15 leads the others
PLAIN_BITS = 3  # a guess at the cost of a bundle token, to weigh edits against all ids in the patch
STRANGE_BITS = 8  # additional cost of a token where all ids are odd
SPARE_NAMES = ("reserved", "unused", "placeholder", "place\u2581holder", "extra_id")  # of marks that are hardly used


# ---- the target: ids <-> text ----


def _fault(exc: BaseException) -> bool:
    """Return whether `exc` says that a call of the tokenizer failed: an error, or a panic of its Rust code."""
    return isinstance(exc, Exception) or type(exc).__name__ == "PanicException"


def _quietly(call: Callable[[], T], otherwise: T) -> T:
    """Return the result of a call of the tokenizer, or `otherwise` where it fails."""
    try:
        return call()
    except BaseException as exc:
        if not _fault(exc):
            raise
        return otherwise


def _nodes(tree: Json) -> Iterator[dict[str, Json]]:
    """Yield every object of a JSON tree of normalisers, pre-tokenizers or decoders."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for node in tree:
            yield from _nodes(node)


def _scheme(metaspace: dict[str, Json]) -> str:
    """Return when a Metaspace prepends: "always", "first" or "never". Older files use `add_prefix_space`."""
    default = "always" if metaspace.get("add_prefix_space", True) else "never"
    return str(metaspace.get("prepend_scheme", default))


def _silence(metaspace: dict[str, Json]) -> None:
    metaspace["prepend_scheme"] = "never"
    if "add_prefix_space" in metaspace:
        metaspace["add_prefix_space"] = False


class Dialect:
    """The target's tokenizer as it acts on one kind of span: ids to text and text to ids.

    `text` removes the prefix that the tokenizer puts before a text (SentencePiece's space), so that `ids` puts it there
    again. The decoder's own stripping is switched off, because it also strips where nothing was put.
    """

    def __init__(self, spec: Json) -> None:
        """Build the tokenizer from `spec`, the parsed tokenizer.json, which is not changed."""
        from tokenizers import Tokenizer  # imported late: only tokenising needs it

        nodes = list(_nodes([spec.get("normalizer"), spec.get("pre_tokenizer")]))
        self._always = any(node.get("type") == "Prepend" and node["prepend"] for node in nodes)
        self._unless_there = any(
            (node.get("type") == "Metaspace" and _scheme(node) != "never")
            or (node.get("type") == "ByteLevel" and node.get("add_prefix_space"))
            for node in nodes
        )
        decoder = copy.deepcopy(spec.get("decoder"))
        for node in _nodes(decoder):
            if node.get("type") == "Strip":
                node["start"] = 0
            if node.get("type") == "Metaspace":
                _silence(node)
        model = {key: value for key, value in spec["model"].items() if key != "dropout"}
        quiet = {**spec, "decoder": decoder, "model": model, "truncation": None, "padding": None}
        self.tokenizer = Tokenizer.from_str(json.dumps(quiet))
        self.tokenizer.encode_special_tokens = True  # text that spells a special token is text

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; "" where the tokenizer fails."""
        if not ids:
            return ""
        text = _quietly(lambda: str(self.tokenizer.decode(list(ids), skip_special_tokens=False)), "")
        bare = text.removeprefix(" ")
        if self._always or (self._unless_there and bare and not bare.startswith(" ")):
            return bare
        return text

    def ids(self, text: str) -> list[int]:
        """Return the canonical ids of a text; none where the tokenizer refuses it."""
        if not text:
            return []
        nothing: list[int] = []
        return _quietly(lambda: list(self.tokenizer.encode(text, add_special_tokens=False).ids), nothing)


def _after_mark(shapes: list[Json]) -> None:
    """Change shapes for a span after a mark: Metaspace's `first` has passed."""
    for node in _nodes(shapes):
        if node.get("type") == "Metaspace" and _scheme(node) == "first":
            _silence(node)


class TargetTokenizer:
    """A foreign tokenizer, from the bytes of its tokenizer.json.

    `marks`: ids that stand for no text. `unknown`: the mark for text without a token, or -1. `inline`: the
    other added tokens, which stand for their content.

    Raises:
        ModelError: the JSON is no tokenizer.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            self._spec = json.loads(tokenizer_json)
            self.fingerprint = fingerprint(self._spec)
            model = self._spec["model"]
            self._opening = Dialect(self._spec)
        except BaseException as exc:  # the library raises bare Exception, and panics
            if not _fault(exc):
                raise
            raise ModelError(f"expected a tokenizers JSON file, found one that does not load: {exc!r}") from exc
        tokenizer = self._opening.tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values(), default=-1) + 1
        self.pieces = [""] * self.size
        for piece, i in vocabulary.items():
            self.pieces[i] = piece
        unknown = model.get("unk_id")  # Unigram; the other models name it
        self.unknown = int(vocabulary.get(model.get("unk_token"), -1) if unknown is None else unknown)
        added = tokenizer.get_added_tokens_decoder()
        self.marks = {i for i, token in added.items() if token.special} | ({self.unknown} - {-1})
        self.inline = {i: str(token.content) for i, token in added.items() if i not in self.marks}

    def dialect(self, mark: int) -> Dialect:
        """Return the dialect of a span after `mark`; -1 is for the span that opens the stream."""
        return self._opening if mark < 0 else self._following

    @cached_property
    def _following(self) -> Dialect:
        shapes = {key: self._spec.get(key) for key in ("normalizer", "pre_tokenizer")}
        changed = copy.deepcopy(shapes)
        _after_mark(list(changed.values()))
        return self._opening if changed == shapes else Dialect({**self._spec, **changed})

    def text(self, mark: int, ids: Sequence[int]) -> str:
        """Return the text of the span `ids` after `mark`: inline tokens as they are, the ids between them decoded."""
        cuts = [at for at, i in enumerate(ids) if i in self.inline] if self.inline else []
        ends = [*cuts, len(ids)]
        parts = [self.dialect(mark).text(ids[: ends[0]])]
        for at, end in zip(cuts, ends[1:], strict=True):
            parts += [self.inline[ids[at]], self._following.text(ids[at + 1 : end])]
        return "".join(parts)


def fingerprint(spec: Json) -> bytes:
    """Return 16 bytes that name a tokenizer, from its parsed JSON without `truncation` and `padding`."""
    kept = {key: value for key, value in spec.items() if key not in ("truncation", "padding")}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_SIZE).digest()


# ---- the bundle: marks <-> escapes ----


class Escapes:
    """A map of a target's marks to bundle tokens and back: 15 have one each, the others a number after x15."""

    def __init__(self, target: TargetTokenizer, bundle: BundleTokenizer) -> None:
        order = slot_order(target)
        self.ids = [bundle.specials[f"x{slot}"] for slot in range(ESCAPES)]
        self._slot_of = {i: slot for slot, i in enumerate(self.ids)}
        self._marks = order  # by slot; those from 15 up follow x15
        self._place = {mark: place for place, mark in enumerate(order)}
        last = len(order) - SLOTS - 1  # the highest number after x15
        self._width = max(1, (last.bit_length() + 7) // 8) if last >= 0 else 0  # bytes
        self._byte_of = {i: piece[0] for i, piece in enumerate(bundle.pieces) if len(piece) == 1}
        self._token_of = {byte: i for i, byte in self._byte_of.items()}

    def encode(self, mark: int) -> list[int]:
        """Return the bundle tokens of a mark."""
        place = self._place[mark]
        if place < SLOTS:
            return [self.ids[place]]
        return [self.ids[SLOTS]] + [self._token_of[b] for b in (place - SLOTS).to_bytes(self._width, "big")]

    def decode(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the mark that an escape stands for, and its length in tokens.

        `ids` are the `longest` bundle tokens from an escape on, or those to the end.

        Raises:
            CorruptError: they are no escape of this target.
        """
        slot = self._slot_of[ids[0]]
        if slot < SLOTS:
            place, tokens = slot, 1
        else:
            tail = [self._byte_of.get(i, -1) for i in ids[1 : 1 + self._width]]
            if len(tail) < self._width or -1 in tail or not tail:
                raise CorruptError(f"expected {self._width} byte tokens after <|x15|>, found {list(ids[1:])}")
            place, tokens = SLOTS + int.from_bytes(tail, "big"), 1 + len(tail)
        if place >= len(self._marks):
            raise CorruptError(f"expected an escape for a special token of the target, found number {place}")
        return self._marks[place], tokens

    @property
    def longest(self) -> int:
        """Return the most bundle tokens that one mark takes."""
        return 1 + self._width  # bundle tokens


def slot_order(target: TargetTokenizer) -> list[int]:
    """Return the target's marks by slot. FORMAT.md, "Slots"."""
    return sorted(target.marks, key=lambda i: (any(word in target.pieces[i] for word in SPARE_NAMES), i))


# ---- the bridge ----


class Bridge:
    """A bridge between the ids of one target tokenizer and (bundle tokens, patch).

    Args:
        target_tokenizer_json: the bytes of the target's tokenizer.json.
        bundle: the bundle's tokenizer.

    `fingerprint`: 16 bytes that name the target's tokenizer. `identity`: both vocabularies are one, so ids
    are bundle tokens.

        bridge = Bridge(path.read_bytes(), bundle.tokenizer)
        tokens, patch = bridge.to_bundle(ids)  # patch == b"" for canonical ids
        assert (bridge.from_bundle(tokens, patch) == ids).all()

    Raises:
        ModelError: the JSON is no tokenizer.
    """

    def __init__(self, target_tokenizer_json: bytes, bundle: BundleTokenizer) -> None:
        self._target = TargetTokenizer(target_tokenizer_json)
        self._bundle = bundle
        self._escapes = Escapes(self._target, bundle)
        self.fingerprint = self._target.fingerprint
        self.identity = self._target.pieces == _bundle_pieces(bundle)

    @property
    def size(self) -> int:
        """Return the size of the target's vocabulary: its largest id plus one."""
        return self._target.size

    def to_bundle(self, ids: npt.ArrayLike) -> tuple[Ids, bytes]:
        """Return bundle tokens, int32 (tokens,), and the patch that together give `ids` (n,) back.

        Raises:
            ContentError: `ids` are not flat integers, or one is outside the target's vocabulary.
        """
        real = self._checked(ids)
        if self.identity or not real:
            return np.array(real, np.int32), b""
        tokens, patch, guess = self._spelled(real)
        literal = encode_edits([Edit(0, 0, real)])
        if (not patch or guess < 8 * len(literal)) and self._gives(tokens, patch, real):
            return tokens, patch
        return np.zeros(0, np.int32), literal

    def spell(self, ids: npt.ArrayLike) -> Ids:
        """Return the bundle tokens of the ids' text and marks, int32 (tokens,), whatever patch the ids (n,) need.

        A bundle is trained on them. Raises ContentError, as `to_bundle`.
        """
        real = self._checked(ids)
        return np.array(real, np.int32) if self.identity else np.concatenate(self._pieces(real)[2])

    def from_bundle(self, bundle_ids: npt.ArrayLike, patch: bytes) -> Ids:
        """Return the target's ids, int32 (n,), from the tokens (tokens,) and the patch that `to_bundle` made.

        Work and memory are linear in both.

        Raises:
            CorruptError: `to_bundle` cannot have made the tokens or the patch.
        """
        tokens = np.asarray(bundle_ids)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise CorruptError(f"expected a flat array of tokens, found {tokens.ndim}-d {tokens.dtype}")
        if self.identity:
            return self._same(tokens, patch)
        canonical = [i for mark, text in self._spans(tokens) for i in self._canonical(mark, text)]
        return np.array(apply_patch(canonical, patch, self.size), np.int32)

    def _checked(self, ids: npt.ArrayLike) -> list[int]:
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ContentError(f"expected a flat sequence of token ids, found {array.ndim}-d {array.dtype}")
        bad = array[(array < 0) | (array >= self.size)]
        if bad.size:
            raise ContentError(
                f"expected ids below {self.size}, the target's vocabulary size, found id {bad[0]}; "
                "name the tokenizer these ids were made with"
            )
        return [int(i) for i in array.tolist()]

    def _pieces(self, real: list[int]) -> tuple[list[tuple[int, list[int]]], list[str], list[Ids]]:
        """Return the ids as (mark, ids of the span after it), the text of each span, and the bundle tokens of both."""
        marks = [at for at, i in enumerate(real) if i in self._target.marks]
        starts, ends = [-1, *marks], [*marks, len(real)]
        spans = [(real[s] if s >= 0 else -1, real[s + 1 : end]) for s, end in zip(starts, ends, strict=True)]
        texts = [self._target.text(mark, span) for mark, span in spans]
        encoded = self._bundle.encode_many([text.encode() for text in texts])
        heads = [np.array(self._escapes.encode(mark) if mark >= 0 else [], np.int32) for mark, _ in spans]
        return spans, texts, [np.concatenate(pair) for pair in zip(heads, encoded, strict=True)]

    def _spelled(self, real: list[int]) -> tuple[Ids, bytes, float]:
        """Return the bundle tokens of the ids' text, the patch of edits, and an estimate of the bits of both."""
        canonical: list[int] = []
        edits: list[Edit] = []
        spans, texts, pieces = self._pieces(real)
        for (mark, span), text in zip(spans, texts, strict=True):
            head = [mark] if mark >= 0 else []
            found = self._canonical(mark, text)
            base = len(canonical)
            edits += [Edit(base + e.start, e.drop, e.ids) for e in diff(found, [*head, *span])]
            canonical += found
        tokens = np.concatenate(pieces)
        patch = encode_edits(edits)
        odd = sum(len(edit.ids) for edit in edits) / len(real)  # random ids make a text that nothing predicts
        return tokens, patch, 8 * len(patch) + len(tokens) * (PLAIN_BITS + STRANGE_BITS * odd)

    def _canonical(self, mark: int, text: str) -> list[int]:
        """Return the canonical ids of a mark and the span after it: the one step that both directions share."""
        return ([mark] if mark >= 0 else []) + self._target.dialect(mark).ids(text)

    def _spans(self, tokens: npt.NDArray[Any]) -> Iterator[tuple[int, str]]:
        """Yield (mark, text of the span after it) of a stream; the mark is -1 where none stands."""
        mark, start = -1, 0
        for at in np.flatnonzero(np.isin(tokens, self._escapes.ids)).tolist():
            yield mark, self._text(tokens[start:at])
            mark, length = self._escapes.decode(tokens[at : at + self._escapes.longest].tolist())
            start = at + length
        yield mark, self._text(tokens[start:])

    def _text(self, tokens: npt.NDArray[Any]) -> str:
        try:
            return self._bundle.decode(tokens).decode()
        except UnicodeDecodeError as exc:
            raise CorruptError("expected tokens of UTF-8 text between escapes, found other bytes") from exc

    def _gives(self, tokens: Ids, patch: bytes, real: list[int]) -> bool:
        """Return whether reading back gives the ids, since no tokenizer is trusted."""
        try:
            return bool(self.from_bundle(tokens, patch).tolist() == real)
        except CorruptError:
            return False

    def _same(self, tokens: npt.NDArray[Any], patch: bytes) -> Ids:
        if patch:
            raise CorruptError(f"expected no patch for the bundle's own tokens, found {len(patch)} bytes")
        if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.size:
            raise CorruptError(f"expected tokens below {self.size}, found {tokens.min()}..{tokens.max()}")
        return tokens.astype(np.int32)


def _bundle_pieces(bundle: BundleTokenizer) -> list[str]:
    """Return the bundle's vocabulary as a tokenizer.json spells it."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    pieces = ["".join([letters[byte] for byte in piece]) for piece in bundle.pieces]
    for name, i in bundle.specials.items():
        pieces[i] = f"<|{name}|>"
    return pieces
