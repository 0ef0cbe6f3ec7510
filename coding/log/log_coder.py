"""LogCoder: the content bytes of agent logs to frames and back, by a table, and the model or PPMd. Spec: FORMAT.md.

    content bytes --table--> columns, opaque bits, pieces of text --> PPMd after the text above -----------> frame
                                                                 --> bundle tokens --copies out--> model --> frame

A frame says by which of the methods its text is coded. PPMd is the fast way and needs no tokens. Where the model may
code a text, PPMd does so first, and a sample tells whether the model can take fewer bytes.

A part of a log is coded after the part above it: the state of its table, the past of its copies and the context of the
model are what that one left. A log that grows stores its new lines alone. Which method the part above has, and by which
bundle it is coded, is all the same: its table and its text are, so it can be coded anew without the parts below it.

    coder = LogCoder(bundle, bundle.coder)
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
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pltz.coding import look
from pltz.coding.log import recall, table
from pltz.coding.log.above import Above
from pltz.coding.log.kept import Kept
from pltz.coding.log.recall import Recalled, Source
from pltz.coding.workers import Later, Workers
from pltz.models.bundle.tokenizer import SPECIALS, BundleTokenizer
from pltz.plt_codec import ppmd, repeats
from pltz.plt_codec.container.frame import MAX_TOKENS_PER_BYTE
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.lanes import layout_of
from pltz.plt_codec.limits import MAX_BYTES
from pltz.plt_codec.types import Encoded, FrameItem
from pltz.plt_codec.varint import read_varint, write_varint
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.coding.parts import Coder, Parts, Progress, Tokens

MODEL, COPIES, FAST, PACKED, RECALLS = 1, 2, 4, 8, 16  # bits of the head
CHECK = 8  # bytes of the content's digest
BYTES_PER_BYTE = 1 << 16  # of content, per byte of a frame and one

LEAST_REACH, REACH_PER_BYTE = 1 << 16, 16  # bytes of text above that count, at least and for a content of so many bytes
TEXT_PER_BYTE = 6  # bytes of text at most, per byte of content: JSON text writes one as \\u007f

VOICES = tuple(SPECIALS.index(name) for name in ("user", "assistant", "tool", "system", "function", "message"))
MESSAGE = SPECIALS.index("message")  # before each piece of the text above

FAST_ZSTD = 0.72  # of the size of a text at a fast level of zstd, which `look` expects: its size by PPMd, about
LEAST_LEARNT = 1 << 16  # bytes of text above that PPMd learns, at least,
PER_LEARNT = 4  # and bytes of content per such byte. A log has as much text, about, so learning takes as long as coding
KEPT = 1 << 26  # bytes of texts above that are kept
BYTES_PER_TOKEN = 8  # of a log, per token that the model codes: about, for progress


class Text(NamedTuple):
    """The text of a table, in tokens, (T,), and in bytes."""

    tokens: Tokens
    data: bytes


NO_TEXT = Text(repeats.NOTHING, b"")


def _none() -> Tokens:
    return repeats.NOTHING


@dataclass
class Draft:
    """A content on its way into a frame, without the content.

    Attributes:
        past: the text above that counts; its tokens only where the model may code the text.
        columns, opaque: parts of its table, the second under zstd where that is shorter,
        unpacked: and its bytes without it; None: it is as it was.
        count: bytes of its text.
        by_ppmd: its text in PPMd bytes.
        tokens: of its text, (T,), where the model may code it; else none.
        copies: out of these and the past.
        literals: the tokens left for the model, (L,), once `copies` are taken out.
        looks: samples that tell whether the model codes it in vain; None where it surely does not.
    """

    past: Text
    columns: bytes
    opaque: bytes
    unpacked: int | None
    count: int
    by_ppmd: bytes
    tokens: Tokens = field(default_factory=_none)
    copies: Sequence[repeats.Copy] = ()
    literals: Tokens = field(default_factory=_none)
    looks: look.Samples | None = None


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
        own: bytes of the content without those that are recalled; None: all of them.
        recalled: the passages that are, or rather their number and recalls under zstd.
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
    own: int | None = None
    recalled: tuple[int, bytes] = (0, b"")

    @property
    def name(self) -> Literal["log + ppmd", "log + model"]:
        """Return the name of the method."""
        return "log + model" if self.by_model else "log + ppmd"

    @property
    def bits(self) -> bytes:
        """Return the opaque bytes. Raises CorruptError."""
        return self.opaque if self.unpacked is None else Fallback().decompress(self.opaque, self.unpacked)

    @property
    def recalls(self) -> bytes:
        """Return the recalls, as of `recall.Recalled`. Raises CorruptError."""
        count, packed = self.recalled
        return Fallback().decompress(packed, recall.SIZE * count) if count else b""

    @property
    def coded_tokens(self) -> int:
        """Return the tokens that the model decodes. Raises CorruptError."""
        if not self.by_model:
            return 0
        copied = repeats.unpack(self.copies, self.count, MAX_BYTES) if self.copies else []
        return self.count - sum(copy.length for copy in copied)


Frame = tuple[Parsed, bytes | None, int]  # parsed, its text where the model coded it, and bytes of its content


class Decoded:
    """A content on its way out of its frame.

    ``row``: of what; None: an empty frame. ``above``: the part above it, or the frame that has it. ``later``: what
    `LogTables.joined` returns, of which number ``n`` is of this frame. ``source``: what it recalls passages from.
    """

    def __init__(
        self,
        row: Frame | None,
        above: Above | Decoded | None,
        source: Source | None,
        later: Later | None = None,
        n: int = 0,
    ) -> None:
        self._row, self._above, self._source, self._later, self._n = row, above, source, later, n

    @cached_property
    def part(self) -> Above | None:
        """Return what the next part of the log is decoded after. Raises CorruptError."""
        above = self._above.part if isinstance(self._above, Decoded) else self._above
        if not (self._row and self._later):
            return above
        parsed, _, count = self._row
        return _part_of(parsed, self._later.result()[self._n][0], count, above)

    def content(self) -> bytes:
        """Return the bytes. Raises CorruptError where they do not match their check."""
        if not (self._row and self._later):
            return b""
        parsed, _, count = self._row
        found: bytes = self._later.result()[self._n][1]
        if parsed.own is not None:
            if self._source is None:
                raise CorruptError("a log recalls passages where none can be: the file is damaged")
            found = recall.filled(found, parsed.recalls, count, self._source)
        if check_of(found) != parsed.check:
            raise CorruptError("a log does not match its check: it is damaged, or was coded after another part")
        return found


def _part_of(parsed: Parsed, text: bytes, count: int, above: Above | None) -> Above:
    return Above.made_of(parsed.columns, parsed.bits, text, parsed.own or count, above, count)


def parse(frame: bytes) -> Parsed:
    """Return the parts of a frame of one byte or more of content, with every length checked.

    Raises:
        VersionError: a reserved bit is set.
        CorruptError: the frame breaks a rule of the format.
    """
    if len(frame) < 1 + CHECK:
        raise CorruptError(f"a log frame has at least {1 + CHECK} bytes, found {len(frame)}: the file is damaged")
    head, check, at = frame[0], frame[1 : 1 + CHECK], 1 + CHECK
    if head >= 2 * RECALLS:
        raise VersionError(f"a log frame begins with {head:#04x}, which this pltz does not know: use a newer pltz")
    if head & (COPIES | FAST) and not head & MODEL:
        raise CorruptError("a log frame has copies or a layout of a text without tokens: the file is damaged")
    sizes = []
    for _ in range(3 + bool(head & PACKED) + 3 * bool(head & RECALLS)):
        size, at = read_varint(frame, at)
        sizes.append(size)
    columns, opaque, count, *more = sizes
    unpacked = more.pop(0) if head & PACKED else None
    own, recalls, packed = more or (None, 0, 0)
    if columns + opaque + packed > len(frame) - at:
        raise CorruptError(
            f"columns of {columns} bytes and {opaque} opaque ones do not fit a log frame of {len(frame)}: "
            "the file is damaged"
        )
    recalled, at = (recalls, frame[at : at + packed]), at + packed
    middle, end = at + columns, at + columns + opaque
    copied = repeats.end_of(frame, end) if head & COPIES else end
    room = MAX_TOKENS_PER_BYTE * (len(frame) - end + 1)
    if head & MODEL and count > room:
        raise CorruptError(f"{count} tokens cannot be in {len(frame) - end} bytes of a log frame: the file is damaged")
    parts = frame[at:middle], frame[middle:end], frame[end:copied], frame[copied:]
    return Parsed(bool(head & MODEL), check, count, *parts, bool(head & FAST), unpacked, own, recalled)


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
        self._pasts = Kept[Text](KEPT, lambda text: text.tokens.nbytes + len(text.data))  # by what they are of
        self._spelled = [table.END if token in VOICES else piece for token, piece in enumerate(tokenizer.pieces)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes the same, with a tokenizer of its own."""
        return _tables, (type(self), self.tokenizer.json)

    def draft(self, content: bytes, above: Above | None, by_model: bool) -> Draft:
        """Return a content, of one byte or more, split, and its text by PPMd.

        ``above``: the part above it. ``by_model``: whether its tokens are wanted too.
        """
        past = self.past(above, len(content), in_tokens=by_model)
        split = table.split(content, above)
        data = [piece.text.encode("utf-8", "surrogatepass") for piece in split.pieces]
        text = b"".join(piece + table.END for piece in data)
        if (part := Above.of(content, above)).to_follow:
            self._texts.put(part.key, text)
        by_ppmd = ppmd.encode(text, learnt(past.data, len(content)))
        draft = Draft(past, split.columns, *_packed(split.opaque), len(text), by_ppmd)
        if by_model and text:
            draft.tokens = self._said(data, [VOICES[piece.voice] for piece in split.pieces])
            draft.copies = repeats.find(draft.tokens, past.tokens)
            draft.literals = repeats.literals(draft.tokens, draft.copies)
            draft.looks = look.doubtful(len(draft.literals), text, len(by_ppmd) / FAST_ZSTD)
        return draft

    def past(self, above: Above | None, count: int, *, in_tokens: bool) -> Text:
        """Return the text above a content of ``count`` bytes that counts. The last ones are kept: a proof asks again.

        ``above``: the part above it. ``in_tokens``: whether its tokens are wanted too.
        """
        if not above:
            return NO_TEXT
        key, most = _past_key(above, count, in_tokens), max(LEAST_REACH, REACH_PER_BYTE * count)
        if (text := self._pasts.get(key)) is None:
            parts = list[bytes]()
            at: Above | None = above
            while at and most >= 0:
                part = self._text_of(at)
                end = _last_pieces(part, most)
                parts.append(end)
                most, at = -1 if len(end) < len(part) else most - len(part), at.up
            data = b"".join(parts[::-1])
            pieces = data.split(table.END)[:-1] if in_tokens else []
            text = Text(self._said(pieces, [MESSAGE] * len(pieces)), data)
            self._pasts.put(key, text)
        return text

    def keep(self, above: Above | None, count: int, text: Text, *, in_tokens: bool) -> None:
        """Keep the text above a content, which another process found."""
        if above:
            self._pasts.put(_past_key(above, count, in_tokens), text)

    def joined(self, rows: Sequence[Frame], above: Above | None) -> list[tuple[bytes, bytes]]:
        """Return the text of each frame, and its content without what that recalls. Raises CorruptError.

        ``above``: the part above the first one; each other one was coded after the one before.
        """
        found = []
        for parsed, text, count in rows:
            if text is None:
                size = parsed.own or count
                past = self.past(above, size, in_tokens=False).data
                text = ppmd.decode(parsed.coded, parsed.count, learnt(past, size))
            above = _part_of(parsed, text, count, above)
            found.append((text, table.content_of(above)))
        return found

    def text(self, tokens: Tokens) -> bytes:
        """Return the text of a frame that the model coded as tokens, (T,). Raises CorruptError."""
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


def learnt(past: bytes, count: int) -> bytes:
    """Return what the text of a content of ``count`` bytes is coded after by PPMd, of the text above that counts."""
    return _last_pieces(past, max(LEAST_LEARNT, count // PER_LEARNT))


def _last_pieces(text: bytes, most: int) -> bytes:
    """Return as many of the last pieces of a text as have ``most`` bytes."""
    return text[text.find(table.END, len(text) - most - 1) + 1 :] if len(text) > most else text


def _past_key(above: Above, count: int, in_tokens: bool) -> bytes:
    return above.key + max(LEAST_REACH, REACH_PER_BYTE * count).to_bytes(8) + bytes([in_tokens])


def _tables(made: type[LogTables], tokenizer_json: bytes) -> LogTables:
    return made(BundleTokenizer(tokenizer_json))


class LogCoder:
    """A coder of the content bytes of agent logs, over a bundle and the coder of its tokens.

    Same input, same bytes, on every machine. One thread uses it at a time.

    ``make``: makes the coder of tokens when it is needed first: PPMd needs none. ``workers``: processes with
    `LogTables`; None: none.
    """

    def __init__(self, bundle: Parts, make: Callable[[], Coder], workers: Workers | None = None) -> None:
        self._make = make
        self._tables = LogTables(bundle.tokenizer)
        self._workers = workers or Workers(self._tables)

    @cached_property
    def coder(self) -> Coder:
        """Return the coder of tokens."""
        return self._make()

    def twin(self, coder: Coder) -> LogCoder:
        """Return the same over another coder of the same tokens, for another thread. What both remember is shared."""
        twin = copy(self)
        twin.coder = coder
        return twin

    @property
    def side_by_side(self) -> int:
        """Return how many contents are split or joined at once."""
        return 1 + self._workers.count * self._workers.on

    # ---- content -> frame

    def begin(self, content: bytes, above: Above | None, by_model: bool) -> Later | None:
        """Begin to make a draft of a content; None where it is empty. ``by_model``: whether the model may code it."""
        return self._workers.submit("draft", content, above, by_model) if content else None

    def encode_begun(
        self,
        batch: Sequence[tuple[bytes, Above | None]],
        begun: Sequence[Later | None],
        *,
        fast: bool = False,
        recalled: Sequence[Recalled | None] = (),
    ) -> list[bytes]:
        """Return the frame of each content, of which drafts were begun.

        Args:
            batch: content and the part above it, which its decoder knows too.
            begun: of each, what `begin` returned.
            fast: whether texts are in the fast layout.
            recalled: those contents that are the own bytes of others.
        """
        drafts: list[Draft | None] = [later.result() if later else None for later in begun]
        chosen = self._worth_the_model([draft for draft in drafts if draft and len(draft.tokens)])
        rows, contexts = [draft.literals for draft in chosen], [draft.past.tokens for draft in chosen]
        layouts = [layout_of(len(row), fast=fast) for row in rows]
        encoded = self.coder.encode(rows, layouts=layouts, contexts=contexts) if rows else ()
        coded = dict(zip(map(id, chosen), encoded, strict=True))
        frames: list[bytes] = []
        for (content, above), draft, one in zip(batch, drafts, recalled or [None] * len(batch), strict=True):
            if draft:
                self._tables.keep(above, len(content), draft.past, in_tokens=len(draft.tokens) > 0)
            frames.append(_frame(content, draft, coded.get(id(draft)), one) if draft else b"")
        return frames

    def _worth_the_model(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts whose text the model codes: all but those where PPMd is near, and a sample tells so."""
        asked = [(draft, draft.looks) for draft in drafts if draft.looks]
        looks = [(draft.literals, samples) for draft, samples in asked]
        sizes = look.expected_sizes(self.coder, looks) if looks else ()
        lost = set[int]()
        for (draft, _), size in zip(asked, sizes, strict=True):
            copies = len(repeats.pack(draft.copies)) if draft.copies else 0
            if len(draft.by_ppmd) < size + copies:
                lost.add(id(draft))
        return [draft for draft in drafts if id(draft) not in lost]

    # ---- frame -> content

    def decode_begun(
        self,
        batch: Sequence[tuple[bytes, int, Above | None]],
        *,
        progress: Progress | None = None,
        sources: Sequence[Source | None] = (),
    ) -> list[Decoded]:
        """Decode the texts of frames that the model coded, and begin with the rest.

        The work is bounded by the bytes that are present.

        Args:
            batch: frame, number of bytes of its content, and the part above it.
            progress: called with the number of tokens decoded since the last call.
            sources: of each, what it recalls passages from.

        Raises:
            CorruptError: a frame is damaged, or was coded after another part; what is found out later, its `Decoded`
                raises.
            VersionError: a frame of a newer pltz.
        """
        parsed = [checked(frame, count) if count or frame else None for frame, count, _ in batch]
        known = sources or [None] * len(batch)
        rows = {n: (one, *row[1:]) for n, (one, row) in enumerate(zip(parsed, batch, strict=True)) if one}
        by_model = {n: row for n, row in rows.items() if row[0].by_model}
        texts = dict(zip(by_model, self._texts([*by_model.values()], progress), strict=True))
        begun = [Decoded(None, above, source) for (_, _, above), source in zip(batch, known, strict=True)]
        for n, (one, count, above) in rows.items():
            begun[n] = self._begin([(one, texts.get(n), count)], above, [known[n]])[0]
        return begun

    def _begin(self, rows: Sequence[Frame], above: Above | None, sources: Sequence[Source | None]) -> list[Decoded]:
        """Begin to decode frames that were each coded after the one before."""
        later, begun = self._workers.submit("joined", rows, above), list[Decoded]()
        for n, (row, source) in enumerate(zip(rows, sources, strict=True)):
            begun.append(Decoded(row, begun[-1] if begun else above, source, later, n))
        return begun

    def _texts(self, rows: Sequence[tuple[Parsed, int, Above | None]], progress: Progress | None) -> list[bytes]:
        """Return the texts of frames that the model coded, of the bytes of their contents and the parts above them."""
        pasts = [self._tables.past(above, one.own or count, in_tokens=True).tokens for one, count, above in rows]
        taken = [_copies(one, past) for (one, *_), past in zip(rows, pasts, strict=True)]
        items = []
        for (one, *_), past, copies in zip(rows, pasts, taken, strict=True):
            literals = one.count - sum(copy.length for copy in copies)
            items.append(FrameItem(one.coded, literals, layout_of(literals, fast=one.fast), context=past))
        found = self.coder.decode(items, progress=progress) if items else ()
        return [self._tables.text(repeats.expand(*row)) for row in zip(found, taken, pasts, strict=True)]

    def begin_chain(
        self, rows: Sequence[tuple[bytes, int]], above: Above | None, sources: Sequence[Source | None]
    ) -> list[Decoded] | None:
        """Begin to decode frames that were each coded after the one before, all at once; None: the model has to.

        Args:
            rows: frame, and number of bytes of its content, one or more.
            above: the part above the first one.
            sources: of each, what it recalls passages from.
        """
        parsed = [checked(frame, count) for frame, count in rows]
        if any(one.by_model for one in parsed):
            return None
        frames: list[Frame] = [(one, None, count) for one, (_, count) in zip(parsed, rows, strict=True)]
        return self._begin(frames, above, sources)


def _packed(opaque: bytes) -> tuple[bytes, int | None]:
    """Return opaque bytes under zstd, and how many they are; None, and as they are, where that is not shorter."""
    if Fallback().fast_size(opaque) < len(opaque) and len(shorter := Fallback().compress(opaque)) + 4 < len(opaque):
        return shorter, len(opaque)
    return opaque, None


def _frame(content: bytes, draft: Draft, coded: Encoded | None, recalled: Recalled | None) -> bytes:
    """Return the shorter frame of a content. ``coded``: its literals by the model, None where PPMd codes the text."""
    head, opaque = 0 if draft.unpacked is None else PACKED, draft.opaque
    unpacked = [] if draft.unpacked is None else [draft.unpacked]
    kind, count, text = 0, draft.count, draft.by_ppmd
    if coded is not None:
        copies = repeats.pack(draft.copies) if draft.copies else b""
        data = copies + coded.data
        if len(data) < len(text) and len(draft.tokens) <= MAX_TOKENS_PER_BYTE * (len(data) + 1):
            kind = MODEL | (COPIES if copies else 0) | (FAST if coded.layout != layout_of(len(draft.literals)) else 0)
            count, text = len(draft.tokens), data
    sizes, packed = [len(draft.columns), len(opaque), count, *unpacked], b""
    if recalled:
        content, own, recalls = recalled
        head, packed = head | RECALLS, Fallback().compress(recalls)
        if len(content) > BYTES_PER_BYTE * (len(draft.columns) + len(opaque) + len(text) + len(packed)):
            packed = recalls = recall.padded(recalls, len(content) // BYTES_PER_BYTE)
        sizes += [len(own), len(recalls) // recall.SIZE, len(packed)]
    check = check_of(content)
    return bytes([head | kind]) + check + b"".join(map(write_varint, sizes)) + packed + draft.columns + opaque + text


def checked(frame: bytes, count: int) -> Parsed:
    """Return the parts of a frame that may hold a content of ``count`` bytes. Raises CorruptError, VersionError."""
    parsed = parse(frame)
    if not 0 < count <= min(MAX_BYTES, BYTES_PER_BYTE * (len(frame) + 1)):
        raise CorruptError(f"a log of {count} bytes cannot be in a frame of {len(frame)}: the file is damaged")
    if parsed.own is not None and not 0 < parsed.own <= count:
        raise CorruptError(f"a log of {count} bytes has no {parsed.own} own ones: the file is damaged")
    if max(parsed.count, parsed.unpacked or 0, parsed.recalled[0]) > TEXT_PER_BYTE * (parsed.own or count) + 1024:
        raise CorruptError(f"a log of {count} bytes has no text of {parsed.count}: the file is damaged")
    return parsed


def _copies(parsed: Parsed, past: Tokens) -> list[repeats.Copy]:
    return repeats.unpack(parsed.copies, parsed.count, len(past)) if parsed.copies else []
