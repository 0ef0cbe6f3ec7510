"""LogCoder: the content bytes of agent logs to frames and back, by a table, the model, or zstd. Spec: FORMAT.md.

    content bytes --table--> columns, opaque bits, pieces of text --> bundle tokens --copies out--> model --> frame
                                                                 --> zstd after the text above -----------> frame

A frame says by which of the methods its text is coded. A cheap look chooses beforehand: a fast zstd of the text against
the model on a sample of it.

A part of a log is coded after the part above it: the state of its table, the past of its copies and the context of the
model are what that one left. A log that grows stores its new lines alone. Which method the part above has, and by which
bundle it is coded, is all the same: its table and its text are, so it can be coded anew without the parts below it.

    coder = LogCoder(bundle, bundle.coder())
    batch = [(first_lines, None), (new_lines, Above.of(first_lines))]
    frames = coder.encode_begun(batch, [coder.begin(*one) for one in batch], [True, True])
    [first] = coder.decode_begun([(frames[0], len(first_lines), None)])
    [second] = coder.decode_begun([(frames[1], len(new_lines), first.part)])
    second.content()                                                      # new_lines
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pltz.coding import look
from pltz.coding.log import table
from pltz.coding.log.above import Above
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
    from pltz.coding.parts import Coder, Parts, Progress, Tokens

MODEL, COPIES, FAST, PACKED = 1, 2, 4, 8  # bits of the head
CHECK = 8  # bytes of the content's digest
BYTES_PER_BYTE = 1 << 16  # of content, per byte of a frame and one

LEAST_REACH, REACH_PER_BYTE = 1 << 16, 16  # bytes of text above that count, at least and for a content of so many bytes
TEXT_PER_BYTE = 6  # bytes of text at most, per byte of content: JSON text writes one as \\u007f

VOICES = tuple(SPECIALS.index(name) for name in ("user", "assistant", "tool", "system", "function", "message"))
MESSAGE = SPECIALS.index("message")  # before each piece of the text above

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
        past: the text above that counts.
        columns, opaque: parts of its table.
        literals: the tokens left for the model, (L,), once `copies` are taken out.
        packed: bytes of its text under a fast zstd, about as under `Fallback`.
    """

    past: Text
    columns: bytes
    opaque: bytes
    text: Text
    copies: list[repeats.Copy]
    literals: Tokens
    packed: float


class Decoded(NamedTuple):
    """A content that is decoded but for its bytes.

    Attributes:
        part: what the next part of the log is decoded after; None: nothing.
        content: returns the bytes. Raises CorruptError where they do not match their check.
    """

    part: Above | None
    content: Callable[[], bytes]


@dataclass(frozen=True)
class Parsed:
    """The parts of a log frame.

    Attributes:
        by_model: whether the model codes its text.
        count: bytes or tokens of its text.
        opaque: bytes that no coder shrinks, or these under zstd, where ``unpacked`` says how many they are.
        copies: bytes of the copies; none without.
        coded: bytes of the coded content or text.
        fast: whether the text of the model is in the fast layout.
    """

    by_model: bool
    check: bytes
    count: int
    columns: bytes
    opaque: bytes
    copies: bytes
    coded: bytes
    fast: bool
    unpacked: int | None

    @property
    def name(self) -> Literal["log + zstd", "log + model"]:
        """Return the name of the method."""
        return "log + model" if self.by_model else "log + zstd"

    @property
    def bits(self) -> bytes:
        """Return the opaque bytes. Raises CorruptError."""
        return self.opaque if self.unpacked is None else Fallback().decompress(self.opaque, self.unpacked)

    @property
    def coded_tokens(self) -> int:
        """Return the tokens that the model decodes. Raises CorruptError."""
        if not self.by_model:
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
    if head >= 2 * PACKED:
        raise VersionError(f"a log frame begins with {head:#04x}, which this pltz does not know: use a newer pltz")
    if head & (COPIES | FAST) and not head & MODEL:
        raise CorruptError("a log frame has copies or a layout of a text without tokens: the file is damaged")
    sizes = []
    for _ in range(4 if head & PACKED else 3):
        size, at = read_varint(frame, at)
        sizes.append(size)
    columns, opaque, count, *unpacked = sizes
    if columns + opaque > len(frame) - at:
        raise CorruptError(
            f"columns of {columns} bytes and {opaque} opaque ones do not fit a log frame of {len(frame)}: "
            "the file is damaged"
        )
    middle, end = at + columns, at + columns + opaque
    copied = repeats.end_of(frame, end) if head & COPIES else end
    room = MAX_TOKENS_PER_BYTE * (len(frame) - end + 1)
    if head & MODEL and count > room:
        raise CorruptError(f"{count} tokens cannot be in {len(frame) - end} bytes of a log frame: the file is damaged")
    parts = frame[at:middle], frame[middle:end], frame[end:copied], frame[copied:]
    return Parsed(bool(head & MODEL), check, count, *parts, bool(head & FAST), unpacked[0] if unpacked else None)


def check_of(content: bytes) -> bytes:
    """Return the digest of a content that its frame holds, 8 bytes."""
    return hashlib.blake2b(content, digest_size=CHECK, person=b"pltz log").digest()


def holds(frame: bytes, content: bytes) -> bool:
    """Return whether a frame says that it holds this content. Nothing is decoded."""
    return frame[1 : 1 + CHECK] == check_of(content) if content else not frame


class LogTables:
    """The work of a log coder without a model: a content to a draft, and a table back to a content.

    It is pure, so processes may do it beside the model (workers.py).
    """

    def __init__(self, tokenizer: BundleTokenizer) -> None:
        self.tokenizer = tokenizer
        self._texts = Kept[bytes](KEPT, len)  # of parts whose content is known
        self._pasts = Kept[Text](KEPT, lambda text: text.tokens.nbytes + len(text.data))
        self._spelled = [table.END if token in VOICES else piece for token, piece in enumerate(tokenizer.pieces)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes the same, with a tokenizer of its own."""
        return _tables, (type(self), self.tokenizer.json)

    def draft(self, content: bytes, above: Above | None) -> Draft:
        """Return a content, of one byte or more, split and tokenised. ``above``: the part above it."""
        past = self.past(above, len(content))
        split = table.split(content, above)
        data = [piece.text.encode("utf-8", "surrogatepass") for piece in split.pieces]
        tokens = self._said(data, [VOICES[piece.voice] for piece in split.pieces])
        text = Text(tokens, b"".join(piece + table.END for piece in data))
        self._texts.put(Above.of(content, above).key, text.data)
        copies = repeats.find(text.tokens, past.tokens)
        literals = repeats.literals(text.tokens, copies)
        packed = LEVELS * Fallback.after(past.data).fast_size(text.data)
        return Draft(past, split.columns, split.opaque, text, copies, literals, packed)

    def past(self, above: Above | None, count: int) -> Text:
        """Return the text above a content of ``count`` bytes that counts. The last ones are kept: a proof asks again.

        ``above``: the part above it.
        """
        most = max(LEAST_REACH, REACH_PER_BYTE * count)
        key = above.key + most.to_bytes(8) if above else b""
        if (text := self._pasts.get(key)) is None:
            parts, at = list[bytes](), above
            while at and most >= 0:
                part = self._text_of(at)
                begin = part.find(table.END, len(part) - most - 1) + 1 if len(part) > most else 0
                parts.append(part[begin:])
                most, at = -1 if begin else most - len(part), at.up
            data = b"".join(parts[::-1])
            pieces = data.split(table.END)[:-1]
            text = Text(self._said(pieces, [MESSAGE] * len(pieces)), data)
            self._pasts.put(key, text)
        return text

    def keep(self, above: Above | None, count: int, text: Text) -> None:
        """Keep the text above a content, which another process found."""
        if above:
            self._pasts.put(above.key + max(LEAST_REACH, REACH_PER_BYTE * count).to_bytes(8), text)

    def content(self, part: Above, check: bytes) -> bytes:
        """Return the content of a part that is made of a table, compared with its check. Raises CorruptError."""
        content = table.content_of(part)
        if check_of(content) != check:
            raise CorruptError("a log does not match its check: it is damaged, or was coded after another part")
        return content

    def frame(self, content: bytes, draft: Draft, coded: Encoded | None) -> bytes:
        """Return the shortest frame of a content, as `_frame`."""
        return _frame(content, draft, coded)

    def text(self, parsed: Parsed, past: Text, tokens: Tokens | None) -> bytes:
        """Return the text of a frame with a table. Raises CorruptError.

        ``past``: the text above. ``tokens``: its own, (T,), in method 2.
        """
        if tokens is None:
            return Fallback.after(past.data).decompress(parsed.coded, parsed.count)
        if not len(tokens):
            return b""
        specials = set(np.unique(tokens[tokens < len(SPECIALS)]).tolist())
        if int(tokens[0]) not in VOICES or not specials <= set(VOICES) or int(tokens.max()) >= len(self._spelled):
            raise CorruptError("expected a voice before each piece of a log's text, found none: the file is damaged")
        return b"".join(map(self._spelled.__getitem__, tokens[1:].tolist())) + table.END

    def _text_of(self, part: Above) -> bytes:
        """Return the text that a part has by itself."""
        if part.table:
            return part.table[2]
        if (text := self._texts.get(part.key)) is None:
            text = table.text_of(piece.text for piece in table.split(part.content, part.up).pieces)
            self._texts.put(part.key, text)
        return text

    def _said(self, pieces: Sequence[bytes], voices: Sequence[int]) -> Tokens:
        """Return the tokens of pieces, each with its voice before it, (T,)."""
        parts: list[Tokens] = [repeats.NOTHING]
        for voice, tokens in zip(voices, self.tokenizer.encode_many(pieces), strict=True):
            parts += [np.array([voice]), tokens]
        return np.concatenate(parts)


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

    def begin(self, content: bytes, above: Above | None) -> Later | None:
        """Begin to make a draft of a content; None where it is empty."""
        return self._workers.submit("draft", content, above) if content else None

    def encode_begun(
        self,
        batch: Sequence[tuple[bytes, Above | None]],
        begun: Sequence[Later | None],
        by_model: Sequence[bool],
        *,
        fast: bool = False,
    ) -> list[bytes]:
        """Return the frame of each content, of which drafts were begun.

        Args:
            batch: content and the part above it, which its decoder knows too.
            by_model: for each, whether the model may code its text; else zstd does.
            fast: whether texts are in the fast layout.
        """
        drafts: list[Draft | None] = [later.result() if later else None for later in begun]
        able = [draft for draft, one in zip(drafts, by_model, strict=True) if draft and one]
        chosen = self._worth_the_model(able)
        rows, contexts = [draft.literals for draft in chosen], [draft.past.tokens for draft in chosen]
        layouts = [layout_of(len(row), fast=fast) for row in rows]
        encoded = self.coder.encode(rows, layouts=layouts, contexts=contexts) if rows else ()
        coded = dict(zip(map(id, chosen), encoded, strict=True))
        frames: list[Later | None] = []
        for (content, above), draft in zip(batch, drafts, strict=True):
            if draft:
                self._tables.keep(above, len(content), draft.past)
            frames.append(self._framing(content, draft, coded.get(id(draft))) if draft else None)
        return [later.result() if later else b"" for later in frames]

    def _framing(self, content: bytes, draft: Draft, coded: Encoded | None) -> Later:
        """Begin to make the frame of a content, in a process where zstd has a part in it."""
        row = content, draft, coded
        return self._workers.submit("frame", *row) if coded is None else WhenAsked(_frame, row)

    def _worth_the_model(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts whose text the model codes: all but those where zstd is near, and a sample tells so."""
        able = [draft for draft in drafts if len(draft.text.tokens)]
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

    def decode_begun(
        self, batch: Sequence[tuple[bytes, int, Above | None]], *, progress: Progress | None = None
    ) -> list[Decoded]:
        """Decode the texts of frames, and begin to join them to contents.

        The work is bounded by the bytes that are present.

        Args:
            batch: frame, number of bytes of its content, and the part above it.
            progress: called with the number of tokens decoded since the last call.

        Raises:
            CorruptError: a frame is damaged, or was coded after another part; where a content does not match its check,
                its `Decoded` raises it.
            VersionError: a frame of a newer pltz.
        """
        parsed = [_checked(frame, count) if count or frame else None for frame, count, _ in batch]
        pasts = [self._tables.past(above, count) for _, count, above in batch]
        numbers = [n for n, one in enumerate(parsed) if one and one.by_model]
        taken = {n: _copies(one, pasts[n].tokens) for n in numbers if (one := parsed[n])}
        items = []
        for n in numbers:
            one = parsed[n]
            assert one is not None
            literals = one.count - sum(copy.length for copy in taken[n])
            items.append(FrameItem(one.coded, literals, layout_of(literals, fast=one.fast), context=pasts[n].tokens))
        found = dict(zip(numbers, self.coder.decode(items, progress=progress), strict=True))
        texts = {n: repeats.expand(tokens, taken[n], pasts[n].tokens) for n, tokens in found.items()}
        return [
            self._decoded(one, pasts[n], texts.get(n), count, above) if one else Decoded(above, bytes)
            for n, (one, (_, count, above)) in enumerate(zip(parsed, batch, strict=True))
        ]

    def _decoded(self, parsed: Parsed, past: Text, tokens: Tokens | None, count: int, above: Above | None) -> Decoded:
        """Begin to join the content of a frame. ``tokens``: of its text, (T,), where the model coded it."""
        part = Above.made_of(parsed.columns, parsed.bits, self._tables.text(parsed, past, tokens), count, above)
        return Decoded(part, self._workers.submit("content", part, parsed.check).result)


def _frame(content: bytes, draft: Draft, coded: Encoded | None) -> bytes:
    """Return the shortest frame of a content. ``coded``: its literals by the model, None where zstd codes the text."""
    head, opaque, sizes = 0, draft.opaque, [len(draft.columns), len(draft.opaque), 0]
    if Fallback().fast_size(opaque) < len(opaque) and len(shorter := Fallback().compress(opaque)) + 4 < len(opaque):
        head, opaque, sizes = PACKED, shorter, [len(draft.columns), len(shorter), 0, len(opaque)]

    def joined(kind: int, count: int, text: bytes) -> bytes:
        sizes[2] = count
        rest = draft.columns + opaque + text
        return bytes([head | kind]) + check_of(content) + b"".join(map(write_varint, sizes)) + rest

    best, data = b"", b""
    if coded is not None:
        copies = repeats.pack(draft.copies) if draft.copies else b""
        data = copies + coded.data
        if len(draft.text.tokens) <= MAX_TOKENS_PER_BYTE * (len(data) + 1):
            kind = MODEL | (COPIES if copies else 0) | (FAST if coded.layout != layout_of(len(draft.literals)) else 0)
            best = joined(kind, len(draft.text.tokens), data)
    if not best or draft.packed < len(data):
        other = joined(0, len(draft.text.data), Fallback.after(draft.past.data).compress(draft.text.data))
        best = min(best or other, other, key=len)
    return best


def _checked(frame: bytes, count: int) -> Parsed:
    """Return the parts of a frame that may hold a content of ``count`` bytes. Raises CorruptError, VersionError."""
    parsed = parse(frame)
    if not 0 < count <= min(MAX_BYTES, BYTES_PER_BYTE * (len(frame) + 1)):
        raise CorruptError(f"a log of {count} bytes cannot be in a frame of {len(frame)}: the file is damaged")
    if max(parsed.count, parsed.unpacked or 0) > TEXT_PER_BYTE * count + 1024:
        raise CorruptError(f"a log of {count} bytes has no text of {parsed.count}: the file is damaged")
    return parsed


def _copies(parsed: Parsed, past: Tokens) -> list[repeats.Copy]:
    return repeats.unpack(parsed.copies, parsed.count, len(past)) if parsed.copies else []
