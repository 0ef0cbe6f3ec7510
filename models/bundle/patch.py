"""A patch: the places where a session's real ids differ from the canonical ones, in a few bits per place.

Canonical ids are those that the tokenizer makes of the text again (bridge.py). `diff` finds the places where
the real ones differ, in linear time. Each becomes an `Edit`: so many ids are the same, so many canonical ids
give way to so many real ones. Where both spell the same string, only the lengths of the cuts are stored;
elsewhere the ids themselves. Bits are packed into bytes at the end, and an empty patch has no bytes.
FORMAT.md specifies the bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pltz.plt_codec.errors import CorruptError

GAMMA_ZEROS = 32  # longest run of zeros in a gamma code
RICE_BITS = 4  # width of the parameter k
MEET_TOKENS = 64  # ids a side in which two splits of one text must meet again
WINDOW = 16  # ids a side in which equal ids are sought first; then four times as many, ...


class Vocabulary:
    """A target's vocabulary: the spelling of each id, and the id of each spelling.

    `pieces[i]` is the token of id i, "" where there is none. `spelling[i]` is the same but for WordPiece's
    `##` (`prefix`), which is removed; a piece without it gets a NUL before it. So the pieces of one text join
    to one string however it is cut.
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
        """Return the joined spelling of some ids."""
        return "".join([self.spelling[i] for i in ids])

    def raw(self, i: int) -> str:
        """Return the phase-in code of one id, as a string of 0 and 1."""
        if i < self.short:
            return format(i, f"0{self.width - 1}b")
        return format(i + self.short, f"0{self.width}b")


class PatchReader:
    """A reader of a patch from the front. Its methods raise CorruptError where the patch ends too early."""

    def __init__(self, data: bytes) -> None:
        self._bits = format(int.from_bytes(data, "big"), f"0{8 * len(data)}b")
        self._at = 0

    @property
    def left(self) -> int:
        """Return the number of bits left."""
        return len(self._bits) - self._at

    def take(self, count: int) -> str:
        """Return the next `count` bits as a string of 0 and 1.

        Raises:
            CorruptError: the patch ends before.
        """
        if count > self.left:
            raise CorruptError(f"patch: expected {count} more bits, found {self.left}; the patch is damaged")
        self._at += count
        return self._bits[self._at - count : self._at]

    def number(self, width: int) -> int:
        """Read an unsigned number of `width` bits."""
        return int(self.take(width), 2) if width else 0

    def gamma(self) -> int:
        """Read an Elias gamma code.

        Raises:
            CorruptError: the code does not end.
        """
        one = self._bits.find("1", self._at, self._at + GAMMA_ZEROS + 1)
        if one < 0:
            raise CorruptError("patch: a number does not end; the patch is damaged")
        zeros = one - self._at
        self._at = one
        return self.number(zeros + 1)

    def raw(self, vocabulary: Vocabulary) -> int:
        """Read the phase-in code of one id.

        Raises:
            CorruptError: the id is outside the vocabulary.
        """
        value = self.number(vocabulary.width - 1)
        if value < vocabulary.short:
            return value
        value = 2 * value + self.number(1) - vocabulary.short
        if value >= vocabulary.size:  # a vocabulary of one id
            raise CorruptError(f"patch: expected ids below {vocabulary.size}, found {value}; it is damaged")
        return value

    def raws(self, count: int, vocabulary: Vocabulary) -> list[int]:
        """Read the phase-in codes of `count` ids.

        Raises:
            CorruptError: the patch is too short for them.
        """
        least = max(vocabulary.width - 1, 1)
        if count * least > self.left:
            raise CorruptError(f"patch: expected {count} ids, found {self.left} bits; the patch is damaged")
        return [self.raw(vocabulary) for _ in range(count)]

    def at_end(self) -> bool:
        """Return whether only padding is left: 0 to 7 zero bits."""
        return self.left < 8 and "1" not in self._bits[self._at :]


def pack_bits(bits: str) -> bytes:
    """Pack a string of 0 and 1 into bytes, filled up with zeros."""
    size = -(-len(bits) // 8)
    return int("0" + bits.ljust(8 * size, "0"), 2).to_bytes(size, "big")


def gamma(n: int) -> str:
    """Return the Elias gamma code of n >= 1."""
    digits = format(n, "b")
    return "0" * (len(digits) - 1) + digits


@dataclass(frozen=True)
class Edit:
    """One difference: canonical ids [start, start + drop) are really `ids`."""

    start: int
    drop: int
    ids: Sequence[int]


def diff(canonical: Sequence[int], real: Sequence[int], vocabulary: Vocabulary) -> Iterator[Edit]:
    """Yield the edits that turn canonical into real ids, in order and apart from each other, in linear time.

    Where two ids differ, the tokenisations meet again in one of two ways. Either both have spelled the same
    string (another split of the same text), or a few ids in a row agree.
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
    """Return the fewest ids on both sides that spell the same string.

    Return None where the strings part, or never meet.
    """
    a = b = 0
    ahead = ""  # the text that one side has spelled beyond the other
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
    """Return how far to go on both sides until some ids in a row agree, or to the ends.

    A window without a match grows fourfold. The match found then lies far on, so the work stays linear.
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
    """Return the first places (a, b), a + b least, where `row` ids agree."""
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
    """Return the patch of edits, as a string of 0 and 1; "" for none."""
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
    """Return the patch that holds the ids themselves, as a string of 0 and 1."""
    return "".join(["1", gamma(len(real)), *[vocabulary.raw(i) for i in real]])


def apply_patch(canonical: list[int], patch: bytes, vocabulary: Vocabulary) -> list[int]:
    """Return the real ids for canonical ids. Work is bounded by the ids and the patch.

    Raises:
        CorruptError: the patch is damaged, or does not belong to these ids.
    """
    if not patch:
        return canonical
    bits = PatchReader(patch)
    real = bits.raws(bits.gamma(), vocabulary) if bits.number(1) else _edited(canonical, bits, vocabulary)
    if not bits.at_end():
        raise CorruptError(f"patch: expected its end, found {bits.left} more bits; the patch is damaged")
    return real


def _edited(canonical: list[int], bits: PatchReader, vocabulary: Vocabulary) -> list[int]:
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


def _cut(text: str, bits: PatchReader, vocabulary: Vocabulary) -> list[int]:
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
