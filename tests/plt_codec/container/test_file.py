"""A .pltz container gives back its frames, each alone, and refuses every byte that is not as it was written.

The golden files (tests/golden/containers) were written by make.py beside them, a second writer that shares no code with
pltz; each bad one has the one defect it is named after.
"""

import io
import mmap
import struct
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec import repeats
from pltz.plt_codec.container import session_block
from pltz.plt_codec.container.block import seed_of
from pltz.plt_codec.container.file import BlockPlace, Index, Reader, Writer, pack
from pltz.plt_codec.container.frame import (
    CHECK_KEPT,
    MAX_COUNT,
    MAX_TOKENS_PER_BYTE,
    MOST_CONTEXTS,
    Frame,
    FrameCoding,
    Kind,
    Method,
    content_check,
)
from pltz.plt_codec.container.header import Header
from pltz.plt_codec.container.session_block import StoredFrame
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, UsageError, VersionError
from pltz.plt_codec.varint import write_varint
from tests.second_reader.container import File as SecondReader
from tests.watch import memory_below

GOLDEN = Path(__file__).parents[2] / "golden" / "containers"
HEADER = Header(bundle_id=bytes(range(16)))
checks = st.integers(0, (1 << 32) - 1)
fingerprints = st.none() | st.binary(min_size=16, max_size=16)
headers = st.builds(Header, st.binary(min_size=16, max_size=16), fingerprints, fingerprints)

copied = st.builds(repeats.Copy, st.integers(0, 300), st.integers(repeats.LEAST, 400), st.integers(1, 300))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    content, method = draw(st.sampled_from(Kind)), draw(st.sampled_from([Method.MODEL, Method.BYTES]))
    data = draw(st.binary(max_size=300))
    if method is Method.BYTES:
        return Frame(content, method, len(data) + draw(st.integers(0, 70_000)), draw(checks), data)
    patch = draw(st.binary(max_size=200)) if content is Kind.IDS else b""
    count = draw(st.integers(0, MAX_TOKENS_PER_BYTE * (len(data) + 1)))
    found = draw(st.lists(copied, max_size=12))
    copies = repeats.pack(found) if found else b""
    return Frame(content, method, count, draw(checks), copies + data, draw(st.booleans()), patch, bool(copies))


def text(content: bytes) -> Frame:
    return Frame(
        Kind.TEXT, Method.BYTES, len(content), content_check(Kind.TEXT, Method.BYTES, len(content), content), content
    )


@st.composite
def files(draw: st.DrawFn, most: int = 30) -> list[Frame]:
    """Frames, some of them after an earlier one."""
    made: list[Frame] = []
    for frame in draw(st.lists(frames(), max_size=most)):
        able = [i for i, other in enumerate(made) if other.by_model and contexts_behind(made, i) < MOST_CONTEXTS]
        if frame.by_model and able and draw(st.booleans()):
            frame = replace(frame, context=draw(st.sampled_from(able)))
        made.append(frame)
    return made


def contexts_behind(made: list[Frame], number: int) -> int:
    context = made[number].context
    return 0 if context is None else 1 + contexts_behind(made, context)


def kept(frames: list[Frame]) -> list[Frame]:
    """Frames as a file gives them back: with the part of the check that it keeps."""
    return [replace(frame, check=frame.check & CHECK_KEPT) for frame in frames]


def whole(before: bytes, index: bytes, head: bytes | None = None) -> bytes:
    """A file with a footer that holds."""
    footer = struct.pack("<I", len(index))
    head = HEADER.encode() if head is None else head
    return before + index + footer + struct.pack("<I", zlib.crc32(head + index + footer))


def read_all(data: bytes) -> list[Frame]:
    """Every session and every check that a container has."""
    reader = Reader(data)
    found = list(reader)
    reader.verify()
    assert all(0 <= frame.coded <= frame.count for frame in found)
    return found


# ---- round trips


@given(headers, files())
def test_frames_come_back(header: Header, given_frames: list[Frame]) -> None:
    data = pack(header, given_frames)
    reader = Reader(data)
    assert reader.header == header and len(reader) == len(given_frames) and list(reader) == kept(given_frames)
    infos = [reader.info(i) for i in range(len(reader))]
    assert [(one.content, one.method) for one in infos] == [(one.content, one.method) for one in given_frames]
    reader.verify()


@given(files(5).filter(bool))
def test_every_source_reads_the_same(tmp_path_factory: pytest.TempPathFactory, given_frames: list[Frame]) -> None:
    data = pack(HEADER, given_frames)
    path = tmp_path_factory.mktemp("container") / "some.pltz"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for source in (data, bytearray(data), memoryview(data), mapped):
            with Reader(source) as reader:
                reader.verify()
                assert list(reader) == kept(given_frames)
    with Reader.open(path) as reader:
        assert list(reader) == kept(given_frames)


@pytest.mark.parametrize("sessions", [8, 20, 1000])
def test_a_session_is_read_with_its_head_and_its_piece(sessions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [bytes([i % 251]) * 200 for i in range(sessions)]
    reader, read, touched = Reader(pack(HEADER, map(text, contents))), Reader._read, set[int]()

    def watched(self: Reader, offset: int, size: int) -> bytes:
        touched.update(range(offset, offset + size))
        return read(self, offset, size)

    monkeypatch.setattr(Reader, "_read", watched)
    number = sessions - 3
    assert reader.frame(number).data == contents[number]
    block, row = reader._place(number)
    piece = block.piece(row)
    assert piece is not None and piece.last - piece.first <= 21  # sessions of 200 bytes
    begin = block.offset + block.size
    assert touched <= {*range(block.offset, begin), *range(begin + piece.begin, begin + piece.end)}


@pytest.mark.parametrize(
    ("sessions", "most"), [(0, 32), (1, 64), (10, 118), (100, 470), (2000, 9200), (20_000, 90_700)]
)
def test_bytes_beside_the_frames(sessions: int, most: int) -> None:
    rng = np.random.default_rng(1)
    tokens = np.exp(rng.normal(6, 1, sessions)).astype(int) + 8
    lengths = (tokens * np.exp(rng.normal(-1, 0.4, sessions))).astype(int) + 1
    many = [
        Frame(Kind.CHAT, Method.MODEL, int(t), i * 2_147_483_659 % 2**32, bytes(int(n)))
        for i, (t, n) in enumerate(zip(tokens, lengths, strict=True))
    ]
    reader = Reader(pack(HEADER, many))
    assert reader.overhead == reader.size - lengths.sum() and reader.overhead <= most


def test_a_file_of_a_million_sessions_opens_in_a_moment() -> None:
    count = 1_000_000
    part = pack(HEADER, [text(bytes(n % 3)) for n in range(64)])
    head, body = (getattr(Reader(part)._index.blocks[0], name) for name in ("head", "body"))
    places = [BlockPlace(64, head, body)] * (count // 64)
    index = Index(Reader(part)._index.codings, places, 0).encode()
    last, rows = len(HEADER.encode()) + (len(places) - 1) * (head + body), [text(bytes(n % 3)) for n in range(64)]
    stored = [StoredFrame(0, f.count, f.check & CHECK_KEPT, f.data, False, 0) for f in rows]
    data = whole(
        HEADER.encode() + bytes(last - 22) + b"".join(session_block.encode(stored, HEADER.encode(), last)), index
    )
    start = time.process_time()  # a loaded machine is none that reads every block
    reader = Reader(data)
    assert len(reader) == count and reader.frame(count - 1).data == bytes(63 % 3) and time.process_time() - start < 2


# ---- damage


def test_every_changed_byte_is_noticed() -> None:
    frame = Frame(Kind.IDS, Method.MODEL, 5, 77, b"\x90\x12", fast=True, patch=b"\xaa")
    data = pack(Header(bytes(16), bytes(16), bytes(16)), [text(b"hello"), frame, text(b"")])
    for position in range(len(data)):
        for value in {data[position] ^ 1 << bit for bit in range(8)} | {0, 255} - {data[position]}:
            with pytest.raises(FormatError):
                read_all(data[:position] + bytes([value]) + data[position + 1 :])


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_any_index_under_a_sound_sum(index: bytes, body: bytes) -> None:
    try:
        found = read_all(whole(HEADER.encode() + body, index))
    except FormatError:
        return
    assert sum(len(frame.encode()) for frame in found) == len(body) and all(frame.fits for frame in found)


@given(st.integers(1, 128), st.binary(max_size=200), st.binary(max_size=60))
def test_any_head_under_a_sound_sum(sessions: int, rest: bytes, body: bytes) -> None:
    head = b"PL" + write_varint(1 + len(rest)) + write_varint(len(body)) + bytes([sessions]) + rest
    head += zlib.crc32(head, seed_of(HEADER.encode(), 24)).to_bytes(4, "little")
    codings = [FrameCoding(Kind.TEXT), FrameCoding(Kind.CHAT, Method.BYTES)]
    index = Index(codings, [BlockPlace(sessions, len(head), len(body))], 0).encode()
    try:
        found = read_all(whole(HEADER.encode() + head + body, index))
    except FormatError:
        return
    assert len(found) == sessions and all(frame.fits for frame in found)
    assert sum(len(frame.encode()) for frame in found) == len(body)


def damaged(data: bytes, reader: Reader, sessions: list[int]) -> bytes:
    """The file with one byte changed in each of these sessions."""
    changed = bytearray(data)
    for number in sessions:
        changed[reader.info(number).offset + 3] ^= 0x40
    return bytes(changed)


@pytest.mark.parametrize("hurt", [[0], [57], [99], list(range(31, 31 + 80)), [5, 170], [1999]])
def test_damage_costs_a_piece_and_all_others_are_read(hurt: list[int]) -> None:
    contents = [b"%05d" % i * 20 for i in range(2000)]
    data = pack(HEADER, map(text, contents))
    changed = damaged(data, Reader(data), hurt)
    lost = []
    sound = Reader(data)
    for number in range(2000):
        block, row = sound._place(number)
        piece = block.piece(row)
        assert piece is not None and piece.last - piece.first <= 41  # sessions of 100 bytes
        if any(piece.first <= n - block.first < piece.last for n in hurt):
            lost.append(number)
    reader = Reader(changed)
    assert reader.damaged() == lost
    with pytest.raises(CorruptError, match=f"damaged sessions: {lost[0]}.* {2000 - len(lost)} of 2000 are sound"):
        reader.verify()
    for number in range(2000):
        if number in lost:
            with pytest.raises(CorruptError, match=f"session {number}"):
                reader.frame(number)
        else:
            assert reader.frame(number).data == contents[number]


def test_a_damaged_head_costs_its_block() -> None:
    contents = [b"%05d" % i for i in range(300)]
    data = bytearray(pack(HEADER, map(text, contents)))
    data[Reader(bytes(data))._place(130)[0].offset + 9] ^= 1
    reader = Reader(bytes(data))
    assert reader.damaged() == list(range(128, 256)) and len(reader) == 300
    for read in (reader.frame, reader.info):
        with pytest.raises(CorruptError, match="session 200: the block at byte"):
            read(200)
    assert [reader.frame(i).data for i in (0, 127, 256, 299)] == [contents[i] for i in (0, 127, 256, 299)]


@given(st.data())
def test_no_damaged_session_is_called_sound(data: st.DataObject) -> None:
    sessions = data.draw(st.integers(1, 300))
    hurt = sorted(data.draw(st.sets(st.integers(0, sessions - 1), max_size=12)))
    file = pack(HEADER, [text(b"%05d" % i) for i in range(sessions)])
    found = Reader(damaged(file, Reader(file), hurt)).damaged()
    assert set(hurt) <= set(found) and {n // 128 for n in found} == {n // 128 for n in hurt}


def test_the_check_of_all_contents() -> None:
    frames = [text(b"%05d" % i) for i in range(20)]
    reader = Reader(pack(HEADER, frames))
    reader.check_contents(frame.check for frame in frames)
    with pytest.raises(CorruptError, match="contents"):
        reader.check_contents(frame.check ^ 256 for frame in frames)


# ---- golden files


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("good-*.pltz")), ids=lambda path: path.stem)
def test_golden_good_files_are_read_as_by_a_reader_that_shares_no_code(path: Path) -> None:
    """They were written field by field: golden/containers/make.py."""
    data = path.read_bytes()
    file, reader, frames = SecondReader(data), Reader(data), list[Frame]()
    assert reader.header.bundle_id == file.bundle_id == bytes(range(16)) and len(file.sessions) == len(reader)
    for number, other in enumerate(file.sessions):
        coding = other.coding
        if coding.content < 0:
            continue  # of a newer version
        frames.append(frame := reader.frame(number))
        assert (frame.content, frame.method, frame.writing) == (coding.content, coding.method, coding.writing)
        assert (frame.count, frame.copied, frame.fast) == (other.units, other.copied, coding.layout)
        before = write_varint(len(frame.patch)) + frame.patch if frame.patch else b""
        assert before + frame.data == other.data and frame.context == (number - other.step if other.step else None)
        assert frame.check & CHECK_KEPT == other.check
    assert path.stem.startswith("good-newer") or list(Reader(pack(reader.header, frames))) == frames


def test_golden_fingerprints() -> None:
    both = Reader((GOLDEN / "good-fingerprints.pltz").read_bytes()).header
    assert both.tokenizer_fingerprint == bytes(range(16, 32)) and both.target_fingerprint == bytes(range(32, 48))
    alone = Reader((GOLDEN / "good-target-alone.pltz").read_bytes()).header
    exact = Reader((GOLDEN / "good-exact.pltz").read_bytes()).header
    assert exact.exact and Header.decode(exact.encode())[0] == exact and not (alone.exact or both.exact)
    assert alone.tokenizer_fingerprint is None and alone.target_fingerprint == bytes(range(32, 48))


def test_a_newer_coding_leaves_the_other_sessions_readable() -> None:
    reader = Reader((GOLDEN / "good-newer-coding-beside-others.pltz").read_bytes())
    reader.verify()
    assert [reader.frame(i).count for i in (0, 2)] == [2, 5]
    for read in (reader.info, reader.frame):
        with pytest.raises(VersionError, match="newer"):
            read(1)


NEWER = {
    "newer-version", "reserved-header-flag", "coding-reserved-bit", "coding-reserved-content", "coding-reserved-method",
    "copies-newer", "head-newer-column", "version-1", "version-2", "version-3", "version-4", "version-5", "version-6",
    "version-7", "version-8", "version-9",
}
FOREIGN = {"empty-file", "magic", "zip-file"}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("bad-*.pltz")), ids=lambda path: path.stem)
def test_golden_bad_files_are_refused(path: Path) -> None:
    defect = path.stem.removeprefix("bad-")
    expected = VersionError if defect in NEWER else FormatError if defect in FOREIGN else CorruptError
    with memory_below(1 << 20), pytest.raises(FormatError) as caught:  # no count of theirs was believed
        read_all(path.read_bytes())
    assert caught.type is expected and len(str(caught.value)) > 20, caught.value


# ---- what a writer refuses


@pytest.mark.parametrize(("frame", "error"), [
    (Frame(Kind.CHAT, Method.MODEL, 2 * MAX_TOKENS_PER_BYTE + 1, 0, b"x"), ContentError),
    (Frame(Kind.CHAT, Method.MODEL, -1, 0, b"x"), ContentError),
    (Frame(Kind.TEXT, Method.BYTES, MAX_COUNT + 1, 0, b"x"), ContentError),
    (Frame(Kind.TEXT, Method.BYTES, 0, 0, b"x"), UsageError),
    (Frame(Kind.TEXT, Method.BYTES, 1, 0, b"x", fast=True), UsageError),
    (Frame(Kind.CHAT, Method.MODEL, 1, 0, b"x", patch=b"p"), UsageError),
    (Frame(Kind.IDS, Method.LOG, 1, 0, b"x"), UsageError),
])
def test_a_writer_refuses_what_no_reader_takes(frame: Frame, error: type[Exception]) -> None:
    writer = Writer(io.BytesIO(), HEADER)
    with pytest.raises(error):
        writer.add(frame)
    assert len(writer) == 0


@pytest.mark.parametrize("context", [-1, 1, 4, 5, 6])
def test_a_context_is_earlier_has_tokens_and_is_not_the_fourth(context: int) -> None:
    model = Frame(Kind.CHAT, Method.MODEL, 1, 0, b"x")
    writer = Writer(io.BytesIO(), HEADER)
    for frame in (model, text(b"hi"), *(replace(model, context=n) for n in (0, 2, 3))):
        writer.add(frame)
    with pytest.raises(UsageError, match="context"):
        writer.add(replace(model, context=context))
    with pytest.raises(UsageError, match="context"):
        writer.add(replace(text(b"hi"), context=0))


def test_an_unfinished_file_is_refused() -> None:
    sink = io.BytesIO()
    writer = Writer(sink, HEADER)
    writer.add(text(b"hello"))
    with pytest.raises(CorruptError, match="cut off"):
        Reader(sink.getvalue())
    writer.finish()
    assert len(Reader(sink.getvalue())) == 1
    with pytest.raises(UsageError, match="finished"):
        writer.add(text(b"more"))


@pytest.mark.parametrize("wrong", [{"bundle_id": b"x"}, {"target_fingerprint": bytes(15)}])
def test_a_header_checks_its_fields(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"bundle_id": bytes(16)}
    with pytest.raises(UsageError, match="expected"):
        Header(**(fields | wrong))  # type: ignore[arg-type]  # wrong on purpose


# ---- calls that make no sense


@pytest.mark.parametrize("index", [-1, 1])
def test_a_session_that_is_not_there(index: int) -> None:
    with pytest.raises(UsageError, match="session number"):
        Reader(pack(HEADER, [text(b"x")])).frame(index)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty.pltz").touch()
    with pytest.raises(UsageError, match="cannot read"):
        Reader.open(tmp_path / "missing.pltz")
    with pytest.raises(UsageError, match="cannot read"):
        Reader.open(tmp_path)
    with pytest.raises(CorruptError, match="empty"):
        Reader.open(tmp_path / "empty.pltz")


def test_a_closed_reader_says_so() -> None:
    reader = Reader(pack(HEADER, [text(b"x")]))
    reader.close()
    reader.close()
    with pytest.raises(UsageError, match="closed"):
        reader.frame(0)
