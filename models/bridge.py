"""Bridge: token ids of any Hugging Face tokenizer <-> bundle tokens, exactly.

The decoder bundle predicts its own tokens, but sessions arrive as ids of the served model's tokenizer (the
*target*). The bridge spells the ids as text, and the reader tokenises that text again. What the tokenizer
itself makes of the text is the *canonical* tokenisation and costs nothing; each place where the real ids
differ (a sampled split, half a character, random ids) costs a *patch* of a few bits.

    ids     <|im_start|>   Hel lo ▁world   <|im_end|>      as sampled
    bundle  <|x1|>         Hello world     <|x3|>          bundle tokens of the text; marks as escapes
    patch   "1 id on, 1 id is cut after 3 of its 5 characters"

Marks (special tokens and the unknown token) stand for no text, so they become the bundle's 16 escapes, by a
table that follows from the tokenizer alone. Text that merely spells a mark stays text. The span between two
marks is tokenised by itself, as the `tokenizers` library does it.

Why not code the ids as they are: the bundle would need every target's vocabulary. Why not trust decode and
encode: no tokenizer gives back every id sequence, so `to_bundle` reads back what it wrote, and where that
fails, or costs more, keeps the ids raw in the patch (about log2 V bits each, no bundle tokens).

The stored bytes are specified in FORMAT.md beside this file. All work is linear in the ids.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pltz.models.tokenizer import BundleTokenizer, _byte_alphabet
from pltz.plt_codec.errors import ContentError, CorruptError, ModelError

T = TypeVar("T")
Ids = npt.NDArray[np.int32]
Json = Any

FINGERPRINT_SIZE = 16  # bytes
ESCAPES = 16  # bundle specials x0 .. x15
SLOTS = ESCAPES - 1  # marks with an escape of their own; x15 leads the others
UNKNOWN_SLOT = 5
GAMMA_ZEROS = 32  # longest run of zeros in a gamma code
RICE_BITS = 4  # width of the parameter k
PLAIN_BITS = 3  # a guess at the cost of a bundle token, to weigh edits against the literal form
STRANGE_BITS = 8  # what it costs more where all ids are odd
MEET_TOKENS = 64  # ids a side in which two splits of one text must meet again
WINDOW = 16  # ids a side in which equal ids are sought first; then four times as many, ...

# Names with an escape of their own, so that a role looks the same to the bundle in sessions of many targets.
# One slot a line; part of the format.
SLOT_NAMES = [
    line.split()
    for line in (
        "<|begin_of_text|> <s> <bos> <|startoftext|> <\uff5cbegin\u2581of\u2581sentence\uff5c> [CLS]",
        "<|im_start|> <|start_header_id|> <start_of_turn> <|turn> [INST] <|start|> <\uff5cUser\uff5c>",
        "<|end_header_id|> [/INST] <|im_sep|> <|message|> <\uff5cAssistant\uff5c>",
        "<|im_end|> <|eot_id|> <end_of_turn> <turn|> <|end|> [SEP]",
        "<|end_of_text|> </s> <eos> <|endoftext|> <|return|> <\uff5cend\u2581of\u2581sentence\uff5c>",
    )
]
SPARE_NAMES = ("reserved", "unused", "placeholder", "extra_id")  # marks a session hardly uses


# ---- the patch: canonical ids -> real ids ----


class Vocabulary:
    """What each id of the target spells, and which id spells a string.

    `pieces[i]` is the token of id i, "" where there is none; `spelling[i]` is the same but for WordPiece's
    `##` (`prefix`): it goes, and a piece without it gets a NUL before it, so that pieces of one text join to
    one string however it is cut.
    """

    def __init__(self, ids: dict[str, int], prefix: str = "") -> None:
        self.size = max(ids.values(), default=-1) + 1  # V
        self.pieces = [""] * self.size
        for piece, i in ids.items():
            self.pieces[i] = piece
        self.spelling = [self._spell(piece, prefix) for piece in self.pieces]
        self.spelled = {s: i for i, s in enumerate(self.spelling) if s}
        alphabet = max(self.size, 2)
        self.width = (alphabet - 1).bit_length()  # bits of a raw id at most
        self.short = (1 << self.width) - alphabet  # ids below this take a bit less

    @staticmethod
    def _spell(piece: str, prefix: str) -> str:
        if not prefix or not piece:
            return piece
        return piece[len(prefix) :] if piece.startswith(prefix) else "\0" + piece

    def join(self, ids: Sequence[int]) -> str:
        return "".join([self.spelling[i] for i in ids])

    def raw(self, i: int) -> str:
        """Phase-in code of one id, as a string of 0 and 1."""
        if i < self.short:
            return format(i, f"0{self.width - 1}b")
        return format(i + self.short, f"0{self.width}b")


class BitReader:
    """Reads a patch from the front; CorruptError where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._bits = format(int.from_bytes(data, "big"), f"0{8 * len(data)}b")
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._bits) - self._at

    def take(self, count: int) -> str:
        """The next `count` bits as a string of 0 and 1."""
        if count > self.left:
            raise CorruptError(f"patch: expected {count} more bits, found {self.left}; the patch is damaged")
        self._at += count
        return self._bits[self._at - count : self._at]

    def number(self, width: int) -> int:
        return int(self.take(width), 2) if width else 0

    def gamma(self) -> int:
        one = self._bits.find("1", self._at, self._at + GAMMA_ZEROS + 1)
        if one < 0:
            raise CorruptError("patch: a number does not end; the patch is damaged")
        zeros = one - self._at
        self._at = one
        return self.number(zeros + 1)

    def raw(self, vocabulary: Vocabulary) -> int:
        value = self.number(vocabulary.width - 1)
        if value < vocabulary.short:
            return value
        value = 2 * value + self.number(1) - vocabulary.short
        if value >= vocabulary.size:  # a vocabulary of one id
            raise CorruptError(f"patch: expected ids below {vocabulary.size}, found {value}; it is damaged")
        return value

    def raws(self, count: int, vocabulary: Vocabulary) -> list[int]:
        least = max(vocabulary.width - 1, 1)
        if count * least > self.left:
            raise CorruptError(f"patch: expected {count} ids, found {self.left} bits; the patch is damaged")
        return [self.raw(vocabulary) for _ in range(count)]

    def at_end(self) -> bool:
        """Only padding is left: 0 to 7 zero bits."""
        return self.left < 8 and "1" not in self._bits[self._at :]


def pack_bits(bits: str) -> bytes:
    size = -(-len(bits) // 8)
    return int("0" + bits.ljust(8 * size, "0"), 2).to_bytes(size, "big")


def gamma(n: int) -> str:
    """Elias gamma code of n >= 1."""
    digits = format(n, "b")
    return "0" * (len(digits) - 1) + digits


@dataclass(frozen=True)
class Edit:
    """Canonical ids [start, start + drop) are really `ids`."""

    start: int
    drop: int
    ids: Sequence[int]


def diff(canonical: Sequence[int], real: Sequence[int], vocabulary: Vocabulary) -> Iterator[Edit]:
    """Edits that turn canonical into real ids, in order, apart from each other. Linear time.

    Where two ids differ, the tokenisations meet again either where both have spelled the same string (another
    split of the same text), or where a few ids in a row agree.
    """
    i = j = 0
    i_end, j_end = len(canonical), len(real)
    while i_end and j_end and canonical[i_end - 1] == real[j_end - 1]:
        i_end, j_end = i_end - 1, j_end - 1
    while i < i_end or j < j_end:
        if i < i_end and j < j_end and canonical[i] == real[j]:
            i, j = i + 1, j + 1
            continue
        near = canonical[i : min(i + MEET_TOKENS, i_end)], real[j : min(j + MEET_TOKENS, j_end)]
        drop, take = _same_text(*near, vocabulary) or _same_ids(canonical, i, i_end, real, j, j_end)
        yield Edit(i, drop, real[j : j + take])
        i, j = i + drop, j + take


def _same_text(left: Sequence[int], right: Sequence[int], vocabulary: Vocabulary) -> tuple[int, int] | None:
    """The fewest ids on both sides that spell the same string; None where the strings part, or never meet."""
    a = b = 0
    ahead = ""  # what the side that is ahead has spelled beyond the other
    left_ahead = False
    while True:
        side, at = (right, b) if left_ahead else (left, a)
        if at == len(side) or not (piece := vocabulary.spelling[side[at]]):
            return None
        a, b = a + (not left_ahead), b + left_ahead
        if ahead.startswith(piece):
            ahead = ahead[len(piece) :]
        elif piece.startswith(ahead):
            ahead = piece[len(ahead) :]
            left_ahead = not left_ahead
        else:
            return None
        if not ahead:
            return a, b


def _same_ids(
    canonical: Sequence[int], i: int, i_end: int, real: Sequence[int], j: int, j_end: int
) -> tuple[int, int]:
    """How far to go on both sides until some ids in a row agree, or to the ends.

    A window without a match grows fourfold; the match found then lies far on, so the work stays linear.
    """
    window, row = WINDOW, 2
    while True:
        left, right = canonical[i : min(i + window, i_end)], real[j : min(j + window, j_end)]
        found = _nearest(left, right, row)
        if found:
            return found
        if i + window >= i_end and j + window >= j_end:
            return i_end - i, j_end - j
        window, row = 4 * window, min(row + 1, 4)


def _nearest(left: Sequence[int], right: Sequence[int], row: int) -> tuple[int, int] | None:
    """First places (a, b), a + b least, where `row` ids agree."""
    first: dict[tuple[int, ...], int] = {}
    for a in range(len(left) - row + 1):
        first.setdefault(tuple(left[a : a + row]), a)
    best: tuple[int, int] | None = None
    for b in range(len(right) - row + 1):
        if best and b >= sum(best):
            break
        a = first.get(tuple(right[b : b + row]), -1)
        if a >= 0 and (best is None or a + b < sum(best)):
            best = a, b
    return best


def encode_edits(edits: Sequence[Edit], canonical: Sequence[int], vocabulary: Vocabulary) -> str:
    """The patch of edits, as a string of 0 and 1; "" for none."""
    if not edits:
        return ""
    ends = [0] + [edit.start + edit.drop for edit in edits]
    gaps = [edit.start - end for edit, end in zip(edits, ends, strict=False)]
    k = min(range(1 << RICE_BITS), key=lambda k: sum(k + 2 * ((g >> k) + 1).bit_length() for g in gaps))
    parts = ["0", format(k, f"0{RICE_BITS}b")]
    for gap, edit in zip(gaps, edits, strict=True):
        low = format(gap & ((1 << k) - 1), f"0{k}b") if k else ""
        parts += [gamma((gap >> k) + 1), low, _encode_edit(edit, canonical, vocabulary)]
    return "".join(parts)


def _encode_edit(edit: Edit, canonical: Sequence[int], vocabulary: Vocabulary) -> str:
    raws = [vocabulary.raw(i) for i in edit.ids]
    raw = "".join(["1", gamma(edit.drop + 1), gamma(len(raws) + 1), *raws])
    spellings = [vocabulary.spelling[i] for i in edit.ids]
    named = [s != "" and vocabulary.spelled[s] == i for s, i in zip(spellings, edit.ids, strict=True)]
    if (
        not named
        or not all(named)
        or vocabulary.join(canonical[edit.start : edit.start + edit.drop]) != "".join(spellings)
    ):
        return raw
    cuts = "".join(["0" * (len(s) - 1) + "1" for s in spellings])[:-1]  # the last piece ends with S
    return min("0" + gamma(edit.drop) + cuts, raw, key=len)


def encode_literal(real: Sequence[int], vocabulary: Vocabulary) -> str:
    """The patch that holds the ids themselves, as a string of 0 and 1."""
    return "".join(["1", gamma(len(real)), *[vocabulary.raw(i) for i in real]])


def apply_patch(canonical: list[int], patch: bytes, vocabulary: Vocabulary) -> list[int]:
    """Real ids from canonical ids. Raises CorruptError; work is bounded by the ids and the patch."""
    if not patch:
        return canonical
    bits = BitReader(patch)
    real = bits.raws(bits.gamma(), vocabulary) if bits.number(1) else _edited(canonical, bits, vocabulary)
    if not bits.at_end():
        raise CorruptError(f"patch: expected its end, found {bits.left} more bits; the patch is damaged")
    return real


def _edited(canonical: list[int], bits: BitReader, vocabulary: Vocabulary) -> list[int]:
    k = bits.number(RICE_BITS)
    real: list[int] = []
    at = 0  # canonical ids used
    while True:  # at least one edit
        gap = (bits.gamma() - 1 << k) + bits.number(k)
        raw = bits.number(1)
        drop = bits.gamma() - raw
        left = len(canonical) - at
        if gap + drop > left:
            raise CorruptError(
                f"patch: expected an edit of the {left} ids left, found {gap + drop}; it is damaged"
            )
        real += canonical[at : at + gap]
        at += gap
        if raw:
            real += bits.raws(bits.gamma() - 1, vocabulary)
        else:
            real += _cut(vocabulary.join(canonical[at : at + drop]), bits, vocabulary)
        at += drop
        if bits.at_end():
            return real + canonical[at:]


def _cut(text: str, bits: BitReader, vocabulary: Vocabulary) -> list[int]:
    if not text:
        raise CorruptError("patch: expected ids that spell a text to cut, found none; the patch is damaged")
    cuts = bits.take(len(text) - 1) + "1"
    ids: list[int] = []
    start = 0
    while start < len(text):
        end = cuts.index("1", start) + 1
        ids.append(vocabulary.spelled.get(text[start:end], -1))
        start = end
    if -1 in ids:
        raise CorruptError(
            "patch: a piece it cuts is no token of the target; the patch or the target is wrong"
        )
    return ids


# ---- the target: ids <-> text ----


def _fault(exc: BaseException) -> bool:
    """Whether `exc` says that a call of the tokenizer failed: an error, or a panic of its Rust code."""
    return isinstance(exc, Exception) or type(exc).__name__ == "PanicException"


def _quietly(call: Callable[[], T], otherwise: T) -> T:
    """The result of a call of the tokenizer, or `otherwise` where it fails."""
    try:
        return call()
    except BaseException as exc:
        if not _fault(exc):
            raise
        return otherwise


def _nodes(tree: Json) -> Iterator[dict[str, Json]]:
    """Every object of a JSON tree of normalisers, pre-tokenizers or decoders."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for node in tree:
            yield from _nodes(node)


def _scheme(metaspace: dict[str, Json]) -> str:
    """When it prepends: "always", "first" or "never". Older files say it with `add_prefix_space`."""
    default = "always" if metaspace.get("add_prefix_space", True) else "never"
    return str(metaspace.get("prepend_scheme", default))


def _silence(metaspace: dict[str, Json]) -> None:
    metaspace["prepend_scheme"] = "never"
    if "add_prefix_space" in metaspace:
        metaspace["add_prefix_space"] = False


class Dialect:
    """The target's tokenizer as it acts on one kind of span: ids -> text and text -> ids.

    What it puts before a text (SentencePiece's space) is taken off by `text`, so that `ids` puts it there
    again. The decoder's own stripping is switched off: it strips where nothing was put, too.
    """

    def __init__(self, spec: Json) -> None:
        """`spec` is the parsed tokenizer.json; it is not changed."""
        from tokenizers import Tokenizer  # only those who tokenise wait for it

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
        if not ids:
            return ""
        text = _quietly(lambda: str(self.tokenizer.decode(list(ids), skip_special_tokens=False)), "")
        bare = text.removeprefix(" ")
        if self._always or (self._unless_there and bare and not bare.startswith(" ")):
            return bare
        return text

    def ids(self, text: str) -> list[int]:
        """Canonical ids; none where the tokenizer refuses the text."""
        if not text:
            return []
        nothing: list[int] = []
        return _quietly(lambda: list(self.tokenizer.encode(text, add_special_tokens=False).ids), nothing)


def _after_mark(shapes: list[Json]) -> None:
    """For a span after a mark: Metaspace's `first` has passed."""
    for node in _nodes(shapes):
        if node.get("type") == "Metaspace" and _scheme(node) == "first":
            _silence(node)


def _after_unknown(shapes: list[Json]) -> None:
    """For a span that goes on inside a text: nothing is put before it.

    Not where words are split first: there each of them gets its space.
    """
    if any(len(node.get("pretokenizers", [])) > 1 for node in _nodes(shapes)):
        return _after_mark(shapes)
    for node in _nodes(shapes):
        if node.get("type") == "Metaspace":
            _silence(node)
        elif node.get("type") == "ByteLevel" and "add_prefix_space" in node:  # the normaliser has no such key
            node["add_prefix_space"] = False
        elif node.get("type") == "Prepend":
            node["prepend"] = ""


class Target:
    """A foreign tokenizer, from the bytes of its tokenizer.json.

    `marks`: ids that stand for no text; `unknown`: the one among them for what has no token, or -1; `inline`:
    the other added tokens, which stand for their content. Raises ModelError where the JSON is no tokenizer.
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
            raise ModelError(
                f"expected a tokenizers JSON file, found one that does not load: {exc!r}"
            ) from exc
        tokenizer = self._opening.tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = Vocabulary(vocabulary, model.get("continuing_subword_prefix") or "")
        unknown = model.get("unk_id")  # Unigram; the other models name it
        self.unknown = int(vocabulary.get(model.get("unk_token"), -1) if unknown is None else unknown)
        added = tokenizer.get_added_tokens_decoder()
        self.marks = {i for i, token in added.items() if token.special} | ({self.unknown} - {-1})
        self.inline = {i: str(token.content) for i, token in added.items() if i not in self.marks}

    def dialect(self, mark: int) -> Dialect:
        """How a span after `mark` is tokenised; -1 for the span that opens the stream."""
        if mark < 0:
            return self._opening
        return self._inside if mark == self.unknown else self._following

    @cached_property
    def _following(self) -> Dialect:
        return self._changed(_after_mark)

    @cached_property
    def _inside(self) -> Dialect:
        return self._changed(_after_unknown)

    def _changed(self, change: Callable[[list[Json]], None]) -> Dialect:
        shapes = {key: self._spec.get(key) for key in ("normalizer", "pre_tokenizer")}
        changed = copy.deepcopy(shapes)
        change(list(changed.values()))
        return self._opening if changed == shapes else Dialect({**self._spec, **changed})

    def text(self, mark: int, ids: Sequence[int]) -> str:
        """The text of the span `ids` after `mark`: inline tokens as they are, what lies between decoded."""
        cuts = [at for at, i in enumerate(ids) if i in self.inline] if self.inline else []
        ends = [*cuts, len(ids)]
        parts = [self.dialect(mark).text(ids[: ends[0]])]
        between = self._inside if mark == self.unknown else self._following
        for at, end in zip(cuts, ends[1:], strict=True):
            parts += [self.inline[ids[at]], between.text(ids[at + 1 : end])]
        return "".join(parts)


def fingerprint(spec: Json) -> bytes:
    """16 bytes that name a tokenizer: of its parsed JSON less `truncation` and `padding`."""
    kept = {key: value for key, value in spec.items() if key not in ("truncation", "padding")}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_SIZE).digest()


# ---- the bundle: marks <-> escapes ----


class Escapes:
    """Marks of a target <-> bundle tokens: 15 have one each, the others a number after x15."""

    def __init__(self, target: Target, bundle: BundleTokenizer) -> None:
        order = slot_order(target)
        self.ids = [bundle.specials[f"x{slot}"] for slot in range(ESCAPES)]
        self._slot_of = {i: slot for slot, i in enumerate(self.ids)}
        self._marks = order  # by slot; those from 15 up follow x15
        self._place = {mark: place for place, mark in enumerate(order) if mark >= 0}
        last = len(order) - SLOTS - 1  # the highest number after x15
        self._width = max(1, (last.bit_length() + 7) // 8) if last >= 0 else 0  # bytes
        self._byte_of = {i: piece[0] for i, piece in enumerate(bundle.pieces) if len(piece) == 1}
        self._token_of = {byte: i for i, byte in self._byte_of.items()}

    def encode(self, mark: int) -> list[int]:
        place = self._place[mark]
        if place < SLOTS:
            return [self.ids[place]]
        return [self.ids[SLOTS]] + [self._token_of[b] for b in (place - SLOTS).to_bytes(self._width, "big")]

    def decode(self, ids: Sequence[int]) -> tuple[int, int]:
        """The mark and its length: `ids` are the `longest` bundle tokens from an escape on, or to the end."""
        slot = self._slot_of[ids[0]]
        if slot < SLOTS:
            place, tokens = slot, 1
        else:
            tail = [self._byte_of.get(i, -1) for i in ids[1 : 1 + self._width]]
            if len(tail) < self._width or -1 in tail or not tail:
                raise CorruptError(f"expected {self._width} byte tokens after <|x15|>, found {list(ids[1:])}")
            place, tokens = SLOTS + int.from_bytes(tail, "big"), 1 + len(tail)
        if place >= len(self._marks) or self._marks[place] < 0:
            raise CorruptError(f"expected an escape for a special token of the target, found number {place}")
        return self._marks[place], tokens

    @property
    def longest(self) -> int:
        return 1 + self._width  # bundle tokens


def slot_order(target: Target) -> list[int]:
    """The target's marks by slot, 15 or more; -1 in a slot that stays empty. FORMAT.md, "Slots"."""
    name_of = {i: target.vocabulary.pieces[i] for i in target.marks}
    order = [-1] * SLOTS
    if target.unknown >= 0:
        order[UNKNOWN_SLOT] = target.unknown
    mark_of = {name: i for i, name in name_of.items() if i != target.unknown}
    for slot, names in enumerate(SLOT_NAMES):
        order[slot] = next((mark_of[name] for name in names if name in mark_of), -1)
    left = sorted(target.marks - set(order), key=lambda i: (any(s in name_of[i] for s in SPARE_NAMES), i))
    for slot in range(SLOTS):
        if order[slot] < 0 and left:
            order[slot] = left.pop(0)
    return order + left


# ---- the bridge ----


class Bridge:
    """Ids of one target tokenizer <-> (bundle tokens, patch).

    `target_tokenizer_json`: the bytes of the target's tokenizer.json; `bundle`: the bundle's tokenizer.
    `fingerprint`: 16 bytes that name the target's tokenizer. `identity`: both vocabularies are one, ids are
    bundle tokens. Raises ModelError where the JSON is no tokenizer.

        bridge = Bridge(path.read_bytes(), bundle.tokenizer)
        tokens, patch = bridge.to_bundle(ids)  # patch == b"" for canonical ids
        assert (bridge.from_bundle(tokens, patch) == ids).all()
    """

    def __init__(self, target_tokenizer_json: bytes, bundle: BundleTokenizer) -> None:
        self._target = Target(target_tokenizer_json)
        self._bundle = bundle
        self._escapes = Escapes(self._target, bundle)
        self.fingerprint = self._target.fingerprint
        self.identity = self._target.vocabulary.pieces == _bundle_pieces(bundle)

    @property
    def size(self) -> int:
        """Ids of the target's vocabulary: one more than the largest."""
        return self._target.vocabulary.size

    def to_bundle(self, ids: npt.ArrayLike) -> tuple[Ids, bytes]:
        """Bundle tokens, int32 (tokens,), and the patch that together give `ids` back.

        Raises ContentError where `ids` are not flat integers, or one is outside the target's vocabulary.
        """
        real = self._checked(ids)
        if self.identity or not real:
            return np.array(real, np.int32), b""
        tokens, patch, guess = self._spelled(real)
        literal = encode_literal(real, self._target.vocabulary)
        if (not patch or guess < len(literal)) and self._gives(tokens, patch, real):
            return tokens, patch
        return np.zeros(0, np.int32), pack_bits(literal)

    def from_bundle(self, bundle_ids: npt.ArrayLike, patch: bytes) -> Ids:
        """The target's ids, int32 (ids,), of what `to_bundle` made.

        Raises CorruptError where the tokens or the patch are nothing it makes. Work and memory are linear in
        both.
        """
        tokens = np.asarray(bundle_ids)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise CorruptError(f"expected a flat array of tokens, found {tokens.ndim}-d {tokens.dtype}")
        if self.identity:
            return self._same(tokens, patch)
        if patch[:1] >= b"\x80" and tokens.size:
            raise CorruptError(f"expected no bundle tokens beside a literal patch, found {tokens.size}")
        canonical = [i for mark, text in self._spans(tokens) for i in self._canonical(mark, text)]
        return np.array(apply_patch(canonical, patch, self._target.vocabulary), np.int32)

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

    def _spelled(self, real: list[int]) -> tuple[Ids, bytes, float]:
        """Bundle tokens of the ids' text, the patch of edits, and a guess at the bits of both."""
        vocabulary = self._target.vocabulary
        marks = [at for at, i in enumerate(real) if i in self._target.marks]
        starts, ends = [-1, *marks], [*marks, len(real)]
        spans = [(real[s] if s >= 0 else -1, real[s + 1 : end]) for s, end in zip(starts, ends, strict=True)]
        texts = [self._target.text(mark, span) for mark, span in spans]
        canonical: list[int] = []
        edits: list[Edit] = []
        parts: list[Ids] = []
        encoded = self._bundle.encode_many([text.encode() for text in texts])
        for (mark, span), text, piece in zip(spans, texts, encoded, strict=True):
            head = [mark] if mark >= 0 else []
            found = self._canonical(mark, text)
            base = len(canonical)
            edits += [Edit(base + e.start, e.drop, e.ids) for e in diff(found, [*head, *span], vocabulary)]
            canonical += found
            parts += [np.array(self._escapes.encode(mark) if head else [], np.int32), piece]
        tokens = np.concatenate(parts)
        bits = encode_edits(edits, canonical, vocabulary)
        odd = sum(len(edit.ids) for edit in edits) / len(real)  # random ids make a text that nothing predicts
        return tokens, pack_bits(bits), len(bits) + len(tokens) * (PLAIN_BITS + STRANGE_BITS * odd)

    def _canonical(self, mark: int, text: str) -> list[int]:
        """Canonical ids of a mark and the span after it: the one step that both directions share."""
        return ([mark] if mark >= 0 else []) + self._target.dialect(mark).ids(text)

    def _spans(self, tokens: npt.NDArray[Any]) -> Iterator[tuple[int, str]]:
        """(mark, text of the span after it) of a stream; -1 where no mark stands."""
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
        """Whether reading back gives the ids: no tokenizer is trusted."""
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
    """The bundle's vocabulary as a tokenizer.json spells it."""
    letters = {byte: letter for letter, byte in _byte_alphabet().items()}
    pieces = ["".join([letters[byte] for byte in piece]) for piece in bundle.pieces]
    for name, i in bundle.specials.items():
        pieces[i] = f"<|{name}|>"
    return pieces
