"""LogCoder: the content bytes of agent logs to frames and back, by a table, the model, or zstd. Spec: FORMAT.md.

    content bytes --table--> columns, opaque bits, pieces of text --> bundle tokens --copies out--> model --> frame
                                                                 --> zstd after the text above -----------> frame
                  --zstd after the bytes above---------------------------------------------------------> frame

A frame says which of the three methods its text took. A cheap look chooses beforehand: a fast zstd of the text against
the model on a sample of it. The state of the table, the past of the copies and the context of the model are made again
from the bytes above, so a log that grows stores its new lines alone. Encoder and decoder run the same functions over
the same bytes.

    coder = LogCoder(bundle, bundle.coder())
    frames = coder.encode([(first_lines, b""), (new_lines, first_lines)])
    coder.decode([(frames[1], len(new_lines), first_lines)])              # [new_lines]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pltz.coding import look
from pltz.coding.log import table
from pltz.coding.log.kept import Kept
from pltz.coding.workers import Later, WhenAsked, Workers
from pltz.models.bundle.tokenizer import SPECIALS, BundleTokenizer
from pltz.plt_codec import repeats
from pltz.plt_codec.container.frame import MAX_TOKENS_PER_BYTE
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.lanes import layout_of
from pltz.plt_codec.limits import MAX_BYTES
from pltz.plt_codec.types import Encoded, FrameItem
from pltz.plt_codec.varint import read_varint, write_varint
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.coding.log.table import Table
    from pltz.coding.parts import Coder, Parts, Progress, Tokens

Method = Literal["zstd", "log + zstd", "log + model"]
METHODS: tuple[Method, ...] = ("zstd", "log + zstd", "log + model")  # by their number in the head
WHOLE, PACKED, MODEL = range(3)
METHOD_BITS, COPIES, FAST = 3, 4, 8  # of the head
CHECK = 8  # bytes of the content's digest
BYTES_PER_BYTE = 1 << 16  # of content, per byte of a frame and one

REACH = 1 << 22  # bytes above that count at most,
LEAST_REACH, REACH_PER_BYTE = 1 << 16, 16  # and for a content of so many bytes

VOICES = tuple(SPECIALS.index(name) for name in ("user", "assistant", "tool", "system", "function", "message"))

LEVELS = 0.85  # of the size of a text at a fast level of zstd: its size under `Fallback`, about
KEPT = 1 << 26  # bytes of texts above that are kept
BYTES_PER_TOKEN = 8  # of a log, per token that the model codes: about, for progress


class Text(NamedTuple):
    """The text of a table, in tokens, (T,), and in bytes."""

    tokens: Tokens
    data: bytes


NO_TEXT = Text(repeats.NOTHING, b"")


@dataclass
class Draft:
    """A content on its way into a frame, without the content.

    Attributes:
        past: the text of the bytes above that count.
        columns, opaque: parts of its table; no columns: it has none, and is coded whole.
        literals: the tokens left for the model, (L,), once `copies` are taken out.
        packed, whole: bytes of its text and of the content under a fast zstd, about as under `Fallback`.
    """

    past: Text
    columns: bytes
    opaque: bytes
    text: Text
    copies: list[repeats.Copy]
    literals: Tokens
    packed: float
    whole: float


@dataclass(frozen=True)
class Parsed:
    """The parts of a log frame.

    Attributes:
        method: number of `METHODS`.
        count: bytes or tokens of its text.
        opaque: bytes that no coder shrinks.
        copies: bytes of the copies; none without.
        coded: bytes of the coded content or text.
        fast: whether the text of the model is in the fast layout.
    """

    method: int
    check: bytes
    count: int = 0
    columns: bytes = b""
    opaque: bytes = b""
    copies: bytes = b""
    coded: bytes = b""
    fast: bool = False

    @property
    def name(self) -> Method:
        """Return the name of the method."""
        return METHODS[self.method]

    @property
    def coded_tokens(self) -> int:
        """Return the tokens that the model decodes. Raises CorruptError."""
        if self.method != MODEL:
            return 0
        copied = repeats.unpack(self.copies, self.count, MAX_BYTES) if self.copies else []
        return self.count - sum(copy.length for copy in copied)


def parse(frame: bytes) -> Parsed:
    """Return the parts of a frame of one byte or more of content, with every length checked.

    Raises:
        VersionError: a reserved bit is set.
        CorruptError: the frame breaks a rule of the format.
    """
    if len(frame) < 1 + CHECK:
        raise CorruptError(f"a log frame has at least {1 + CHECK} bytes, found {len(frame)}: the file is damaged")
    head, check, at = frame[0], frame[1 : 1 + CHECK], 1 + CHECK
    method = head & METHOD_BITS
    if head & ~(METHOD_BITS | COPIES | FAST) or method >= len(METHODS):
        raise VersionError(f"a log frame begins with {head:#04x}, which this pltz does not know: use a newer pltz")
    if head & (COPIES | FAST) and method != MODEL:
        raise CorruptError("a log frame has copies or a layout of a text without tokens: the file is damaged")
    if method == WHOLE:
        return Parsed(method, check, coded=frame[at:])
    sizes = []
    for _ in range(3):
        size, at = read_varint(frame, at)
        sizes.append(size)
    columns, opaque, count = sizes
    if columns + opaque > len(frame) - at:
        raise CorruptError(
            f"columns of {columns} bytes and {opaque} opaque ones do not fit a log frame of {len(frame)}: "
            "the file is damaged"
        )
    middle, end = at + columns, at + columns + opaque
    copied = repeats.end_of(frame, end) if head & COPIES else end
    room = MAX_TOKENS_PER_BYTE * (len(frame) - end + 1)
    if method == MODEL and count > room:
        raise CorruptError(f"{count} tokens cannot be in {len(frame) - end} bytes of a log frame: the file is damaged")
    fast = bool(head & FAST)
    return Parsed(method, check, count, frame[at:middle], frame[middle:end], frame[end:copied], frame[copied:], fast)


def check_of(content: bytes) -> bytes:
    """Return the digest of a content that its frame holds, 8 bytes."""
    return hashlib.blake2b(content, digest_size=CHECK, person=b"pltz log").digest()


def holds(frame: bytes, content: bytes) -> bool:
    """Return whether a frame says that it holds this content. Nothing is decoded."""
    return frame[1 : 1 + CHECK] == check_of(content) if content else not frame


def usable(above: bytes, count: int) -> bytes:
    """Return the last of the bytes above that count for a content of ``count`` bytes.

    >>> len(usable(bytes(1 << 20), 10)), len(usable(bytes(1 << 20), 9000)), len(usable(bytes(9), 10))
    (65536, 144000, 9)
    """
    return above[-min(REACH, max(LEAST_REACH, REACH_PER_BYTE * count)) :]


class LogTables:
    """The work of a log coder without a model: a content to a draft, and a text back to a content.

    It is pure, so processes may do it beside the model (workers.py).
    """

    def __init__(self, tokenizer: BundleTokenizer) -> None:
        self.tokenizer = tokenizer
        self._pasts = Kept[Text](KEPT, lambda text: text.tokens.nbytes + len(text.data))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes the same, with a tokenizer of its own."""
        return _tables, (type(self), self.tokenizer.json)

    def draft(self, content: bytes, above: bytes) -> Draft:
        """Return a content, of one byte or more, split and tokenised. ``above``: the bytes above it that count."""
        past = self.past(above)  # first, since it remembers what the split needs
        split = table.split(content, above)
        text = self._text(split)
        whole = LEVELS * Fallback.after(above).fast_size(content)
        if max(len(text.tokens), len(text.data)) > _most_text(len(content)):
            return Draft(past, b"", b"", text, [], text.tokens[:0], 0.0, whole)
        copies = repeats.find(text.tokens, past.tokens)
        literals = repeats.literals(text.tokens, copies)
        packed = LEVELS * Fallback.after(past.data).fast_size(text.data)
        return Draft(past, split.columns, split.opaque, text, copies, literals, packed, whole)

    def past(self, above: bytes) -> Text:
        """Return the text of the bytes above. The last ones asked for are kept: a proof asks once more."""
        if not above:
            return NO_TEXT
        if (text := self._pasts.get(above)) is None:
            self._pasts.put(above, text := self._text(table.split(above, remember=True)))
        return text

    def keep(self, above: bytes, text: Text) -> None:
        """Keep the text of the bytes above, which another process found."""
        if above:
            self._pasts.put(above, text)

    def content(self, parsed: Parsed, count: int, above: bytes, tokens: Tokens | None) -> bytes:
        """Return the content of a frame, compared with its check. ``tokens``: of its text, (T,), in method 2.

        Raises CorruptError.
        """
        if parsed.method == WHOLE:
            content = Fallback.after(above).decompress(parsed.coded, count)
        else:
            pieces = self._pieces(parsed, above) if tokens is None else self._spoken(tokens)
            content = table.join(parsed.columns, parsed.opaque, pieces, count, above)
        if len(content) != count or check_of(content) != parsed.check:
            raise CorruptError("a log does not match its check: it is damaged, or was coded after another text")
        return content

    def frame(self, content: bytes, above: bytes, draft: Draft, coded: Encoded | None) -> bytes:
        """Return the shortest frame of a content after the bytes above that count, as `_frame`."""
        return _frame(content, above, draft, coded)

    def _text(self, split: Table) -> Text:
        """Return the text of a table."""
        texts = [piece.text.encode("utf-8", "surrogatepass") for piece in split.pieces]
        parts: list[Tokens] = [repeats.NOTHING]
        for piece, tokens in zip(split.pieces, self.tokenizer.encode_many(texts), strict=True):
            parts += [np.array([VOICES[piece.voice]]), tokens]
        return Text(np.concatenate(parts), b"".join(text + table.END for text in texts))

    def _pieces(self, parsed: Parsed, above: bytes) -> list[str]:
        """Return the pieces of a text under zstd."""
        data = Fallback.after(self.past(above).data).decompress(parsed.coded, parsed.count)
        if data and not data.endswith(table.END):
            raise CorruptError("the text of a log ends within a piece: the file is damaged")
        return [_decoded(piece) for piece in data.split(table.END)[:-1]]

    def _spoken(self, tokens: Tokens) -> list[str]:
        """Return the pieces of a text in tokens, (T,)."""
        starts = np.flatnonzero(tokens < len(SPECIALS)).tolist()
        if len(tokens) and (not starts or starts[0] or not set(tokens[starts].tolist()) <= set(VOICES)):
            raise CorruptError("expected a voice before each piece of a log's text, found none: the file is damaged")
        decode = self.tokenizer.decode
        return [_decoded(decode(tokens[a + 1 : b])) for a, b in pairwise([*starts, len(tokens)])]


def _tables(made: type[LogTables], tokenizer_json: bytes) -> LogTables:
    return made(BundleTokenizer(tokenizer_json))


class LogCoder:
    """A coder of the content bytes of agent logs, over a bundle and the coder of its tokens.

    Same input, same bytes, on every machine. One thread uses it at a time.

    ``workers``: processes with `LogTables`; None: none.
    """

    def __init__(self, bundle: Parts, coder: Coder, workers: Workers | None = None) -> None:
        self.coder = coder
        self._tables = LogTables(bundle.tokenizer)
        self._workers = workers or Workers(self._tables)

    def twin(self, coder: Coder) -> LogCoder:
        """Return the same over another coder of the same tokens, for another thread. What both remember is shared."""
        twin = copy(self)
        twin.coder = coder
        return twin

    # ---- content -> frame

    def encode(
        self,
        batch: Sequence[tuple[bytes, bytes]],
        *,
        by_model: bool = True,
        fast: bool = False,
    ) -> list[bytes]:
        """Return the frame of each content.

        Args:
            batch: content and the bytes above it, which its decoder knows too.
            by_model: whether the model may code texts; else zstd does.
            fast: whether texts are in the fast layout.
        """
        begun = [self.begin(content, above) for content, above in batch]
        return self.encode_begun(batch, begun, [by_model] * len(batch), fast=fast)

    def begin(self, content: bytes, above: bytes) -> Later | None:
        """Begin to make a draft of a content; None where it is empty."""
        return self._workers.submit("draft", content, usable(above, len(content))) if content else None

    def encode_begun(
        self,
        batch: Sequence[tuple[bytes, bytes]],
        begun: Sequence[Later | None],
        by_model: Sequence[bool],
        *,
        fast: bool = False,
    ) -> list[bytes]:
        """Return the frame of each content, as `encode` does, of which drafts were begun."""
        drafts: list[Draft | None] = [later.result() if later else None for later in begun]
        able = [draft for draft, one in zip(drafts, by_model, strict=True) if draft and one]
        chosen = self._worth_the_model(able)
        rows, contexts = [draft.literals for draft in chosen], [draft.past.tokens for draft in chosen]
        layouts = [layout_of(len(row), fast=fast) for row in rows]
        encoded = self.coder.encode(rows, layouts=layouts, contexts=contexts) if rows else ()
        coded = dict(zip(map(id, chosen), encoded, strict=True))
        frames: list[Later | None] = []
        for (content, above), draft in zip(batch, drafts, strict=True):
            above = usable(above, len(content))
            if draft:
                self._tables.keep(above, draft.past)
            frames.append(self._framing(content, above, draft, coded.get(id(draft))) if draft else None)
        return [later.result() if later else b"" for later in frames]

    def _framing(self, content: bytes, above: bytes, draft: Draft, coded: Encoded | None) -> Later:
        """Begin to make the frame of a content, in a process where zstd has a part in it."""
        row = content, above, draft, coded
        if coded is None or not draft.columns:
            return self._workers.submit("frame", *row)
        return WhenAsked(_frame, row)

    def _worth_the_model(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts whose text the model codes: all but those where zstd is near, and a sample tells so."""
        able = [draft for draft in drafts if draft.columns and len(draft.text.tokens)]
        looks = [look.doubtful(len(one.literals), one.text.data, one.packed / LEVELS) for one in able]
        asked = [(draft, samples) for draft, samples in zip(able, looks, strict=True) if samples]
        sizes = look.expected_sizes(self.coder, [(draft.literals, samples) for draft, samples in asked])
        lost = set[int]()
        for (draft, samples), size in zip(asked, sizes, strict=True):
            copies = len(repeats.pack(draft.copies)) if draft.copies else 0
            # where zstd finds no repeats, its levels come to the same
            if draft.packed / (LEVELS if samples is look.RANDOM else 1) < size + copies:
                lost.add(id(draft))
        return [draft for draft in able if id(draft) not in lost]

    # ---- frame -> content

    def decode(
        self, batch: Sequence[tuple[bytes, int, bytes]], *, progress: Progress | None = None
    ) -> list[bytes]:
        """Return the content of each frame.

        The work is bounded by the bytes that are present.

        Args:
            batch: frame, number of bytes of its content, and the bytes above it.
            progress: called with the number of tokens decoded since the last call.

        Raises:
            CorruptError: a frame is damaged, or was coded after other bytes above.
            VersionError: a frame of a newer pltz.
        """
        return [b"" if later is None else later.result() for later in self.decode_begun(batch, progress=progress)]

    def decode_begun(
        self, batch: Sequence[tuple[bytes, int, bytes]], *, progress: Progress | None = None
    ) -> list[Later | None]:
        """Decode the texts of frames, and begin to join them to contents; None where one is empty.

        Raises as `decode`; where a content does not match its check, its result does.
        """
        parsed = [_checked(frame, count) if count or frame else None for frame, count, _ in batch]
        above = [usable(above, count) for _, count, above in batch]
        numbers = [n for n, one in enumerate(parsed) if one and one.method == MODEL]
        pasts = {n: self._tables.past(above[n]).tokens for n in numbers}
        taken = {n: _copies(one, pasts[n]) for n in numbers if (one := parsed[n])}
        items = []
        for n in numbers:
            one = parsed[n]
            assert one is not None
            literals = one.count - sum(copy.length for copy in taken[n])
            items.append(FrameItem(one.coded, literals, layout_of(literals, fast=one.fast), context=pasts[n]))
        found = dict(zip(numbers, self.coder.decode(items, progress=progress), strict=True))
        texts = {n: repeats.expand(tokens, taken[n], pasts[n]) for n, tokens in found.items()}
        rows = zip(parsed, batch, strict=True)
        return [
            self._workers.submit("content", one, count, above[n], texts.get(n)) if one else None
            for n, (one, (_, count, _)) in enumerate(rows)
        ]


def _frame(content: bytes, above: bytes, draft: Draft, coded: Encoded | None) -> bytes:
    """Return the shortest frame of a content after the bytes above that count.

    ``coded``: its literals by the model, None where zstd codes the text.
    """
    check, best = check_of(content), b""
    if draft.columns:
        packed = repeats.pack(draft.copies) if draft.copies else b""
        if coded is not None and len(draft.text.tokens) <= MAX_TOKENS_PER_BYTE * (len(packed + coded.data) + 1):
            fast = coded.layout != layout_of(len(draft.literals))
            head = MODEL | (COPIES if packed else 0) | (FAST if fast else 0)
            best = _joined(head, check, draft, len(draft.text.tokens), packed + coded.data)
        if coded is None or not best or draft.packed < len(packed + coded.data):
            text = Fallback.after(draft.past.data).compress(draft.text.data)
            other = _joined(PACKED, check, draft, len(draft.text.data), text)
            best = min(best or other, other, key=len)
    if not best or draft.whole < len(best):
        other = bytes([WHOLE]) + check + Fallback.after(above).compress(content)
        best = min(best or other, other, key=len)
    return best


def _joined(head: int, check: bytes, draft: Draft, count: int, coded: bytes) -> bytes:
    sizes = len(draft.columns), len(draft.opaque), count
    return bytes([head]) + check + b"".join(map(write_varint, sizes)) + draft.columns + draft.opaque + coded


def _checked(frame: bytes, count: int) -> Parsed:
    """Return the parts of a frame that may hold a content of ``count`` bytes. Raises CorruptError, VersionError."""
    parsed = parse(frame)
    if not 0 < count <= min(MAX_BYTES, BYTES_PER_BYTE * (len(frame) + 1)):
        raise CorruptError(f"a log of {count} bytes cannot be in a frame of {len(frame)}: the file is damaged")
    if parsed.count > _most_text(count):
        raise CorruptError(f"a log of {count} bytes has no text of {parsed.count}: the file is damaged")
    return parsed


def _copies(parsed: Parsed, past: Tokens) -> list[repeats.Copy]:
    return repeats.unpack(parsed.copies, parsed.count, len(past)) if parsed.copies else []


def _most_text(count: int) -> int:
    """Return the most bytes, or tokens, of the text of a content of ``count`` bytes."""
    return 2 * count + 1024


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as exc:
        raise CorruptError(f"expected UTF-8 in the text of a log: {exc}") from exc
