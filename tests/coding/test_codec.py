"""A codec gives every session back, strictly equal, or says by name why not.

The coder here is a fake (10 bits an id): what it stands in for has tests of its own. Tokenizer, bridge and container
are the real ones.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pltz.coding.codec import Codec
from pltz.datasets import sample_sessions
from pltz.models.session import transcript
from pltz.models.session.session import Session, content_bytes
from pltz.plt_codec import repeats
from pltz.plt_codec.container.file import Reader, pack
from pltz.plt_codec.container.frame import Frame, FrameCoding, Kind, Method, content_check
from pltz.plt_codec.container.header import Header
from pltz.plt_codec.errors import BundleMismatch, CorruptError, ModelError, OpaqueContentError, UsageError, VersionError
from pltz.plt_codec.lanes import LAYOUTS, Layout, LayoutName, layout_of
from tests.coding.fake_coder import IMAGE, PROSE, TALK, BrokenCoder, FakeBundle, FakeCoder, chat, ten_bits
from tests.watch import memory_below

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text(max_size=30)}
)
sessions = (
    st.lists(messages, max_size=4).map(lambda m: Session("chat", {"messages": m}))
    | json_values.map(lambda value: Session("chat", value))
    | st.binary(max_size=80).map(lambda data: Session("text", data))
    | st.lists(st.integers(0, 1023), max_size=30).map(lambda ids: Session("ids", ids))
)


# ---- round trips


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(sessions, max_size=8), st.data())
def test_sessions_come_back_in_any_order(codec: Codec, given_sessions: list[Session], data: st.DataObject) -> None:
    frozen = codec.compress(given_sessions)
    assert codec.decompress(frozen) == given_sessions
    order = data.draw(st.permutations(range(len(given_sessions))))
    assert codec.decompress(frozen, order) == [given_sessions[i] for i in order]


class Laid(FakeCoder):
    """Notes the layout of each frame that is decoded."""

    def __init__(self) -> None:
        super().__init__()
        self.layouts: list[Layout] = []

    def _decode(self, item):  # type: ignore[no-untyped-def]
        self.layouts.append(item.layout)
        return super()._decode(item)


def noise(sizes: tuple[int, ...]) -> list[Session]:
    dice = np.random.default_rng(5)
    return [Session("ids", dice.integers(300, 1000, size)) for size in sizes]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frames_tell_their_layout(bundle: FakeBundle, layout: LayoutName) -> None:
    sizes, fast = (1, 49, 513, 2048, 2049, 9000, 65_537), layout == "fast"
    coder, rows = Laid(), noise(sizes)
    codec = Codec(bundle, coder)
    data = codec.compress(rows, verify=False, layout=layout)
    assert all(frame.coding == FrameCoding(Kind.IDS, fast=fast) for frame in Reader(data))
    assert codec.decompress(data) == rows and coder.layouts == [layout_of(size, fast=fast) for size in sizes]


def test_many_sessions_are_coded_side_by_side(bundle: FakeBundle) -> None:
    coder = FakeCoder()
    codec = Codec(bundle, coder)
    frozen = codec.compress([TALK] * 200)
    # alone; after the first, with copies and without; and as there are copies, with them after two and three
    assert (coder.encoded, coder.decoded) == ([200, 1, 1, 197], [200])
    alone = codec.compress([TALK] * 200, independent=True)
    assert coder.encoded[4:] == [200] and len(frozen) < 0.5 * len(alone)
    coder.decoded.clear()
    assert codec.decompress(alone) == codec.decompress(frozen) == [TALK] * 200 and coder.decoded == [200, 1, 1, 1, 197]


def test_progress_counts_each_token_once(codec: Codec, bundle: FakeBundle) -> None:
    tokens = sum(len(transcript.to_tokens(one, bundle.tokenizer)) for one in (TALK, PROSE))
    for verify in (True, False):
        seen: list[int] = []
        codec.compress([TALK, PROSE], verify=verify, progress=seen.append)
        assert sum(seen) == tokens
    seen = []
    codec.decompress(codec.compress([TALK, PROSE]), progress=seen.append)
    assert sum(seen) == tokens


# ---- copies


def test_a_writing_is_said_once_per_file_and_comes_back(codec: Codec) -> None:
    """Say who wrote the JSON of chats in two bytes per file: coded by the model, by zstd and as a log."""
    values = [*(s.value for s in sample_sessions()[:9]), {"messages": [{"role": "user", "content": "ab" * 2000}]}]
    log = [{"type": "note", "uuid": f"{n:08x}", "text": "a note"} for n in range(200)]
    plain = [Session("chat", value) for value in (*values, log)]
    kept = [replace(session, writing=10) for session in plain]
    data = codec.compress(kept, exact=True)
    assert codec.decompress(data) == kept and codec.decompress(data) != plain
    assert {Reader(data).frame(n).log for n in range(len(kept))} == {False, True}
    codings = len({Reader(data).frame(n).coding for n in range(len(kept))})
    assert len(data) == len(codec.compress(plain, exact=True)) + codings


def test_a_writing_of_a_newer_version_is_refused_by_name(codec: Codec) -> None:
    frame = Reader(codec.compress([TALK])).frame(0)
    newer = pack(Header(codec.bundle.id), [replace(frame, writing=1000)])
    with pytest.raises(VersionError, match="writing 1000"):
        codec.decompress(newer)
    for kind, writing in (("text", 1), ("ids", 1), ("chat", 1000), ("chat", -1)):
        with pytest.raises(UsageError, match="writing"):
            Session(kind, b"" if kind == "text" else [], writing)  # type: ignore[arg-type]


def test_copies_that_cannot_be_are_refused(codec: Codec, bundle: FakeBundle) -> None:
    """Damaged copies end in CorruptError, by their own rules or by the content check; never in another session."""
    session = Session("ids", np.tile(np.arange(40, 140), 4))
    header = Header(bundle.id)
    frame = Reader(codec.compress([session])).frame(0)
    frame = replace(frame, check=content_check(Kind.IDS, Method.MODEL, frame.count, session.value))
    assert codec.decompress(pack(header, [frame])) == [session]
    size = repeats.end_of(frame.data, 0)
    for i in range(size):
        for bit in range(8):
            bad = bytearray(frame.data)
            bad[i] ^= 1 << bit
            with pytest.raises(CorruptError):
                codec.decompress(pack(header, [replace(frame, data=bytes(bad))]))
    with pytest.raises(CorruptError):
        codec.decompress(pack(header, [replace(frame, data=frame.data[size:], copied=False)]))


# ---- content that is refused, or kept as it is


def test_opaque_content_is_refused_by_number_or_kept(codec: Codec) -> None:
    with pytest.raises(OpaqueContentError, match=r"session 1: .*image_url"):
        codec.compress([TALK, IMAGE])
    frozen = codec.compress([TALK, IMAGE], keep_opaque=True)
    assert [Reader(frozen).info(i).method for i in range(2)] == [Method.MODEL, Method.BYTES]
    assert codec.decompress(frozen) == [TALK, IMAGE]


def test_nothing_is_acknowledged_that_does_not_decode(bundle: FakeBundle) -> None:
    broken = Codec(bundle, BrokenCoder())
    with pytest.raises(ModelError, match="session 0 does not come back"):
        broken.compress([TALK])
    frozen = broken.compress([TALK], verify=False)
    with pytest.raises(CorruptError, match="session 0 does not match its checksum"):
        broken.decompress(frozen)


# ---- partners


def test_another_bundle_is_refused_with_both_ids(codec: Codec, bundle: FakeBundle) -> None:
    other = Codec(FakeBundle(bundle.tokenizer, id=bytes(16)), FakeCoder())
    with pytest.raises(BundleMismatch) as caught:
        other.decompress(codec.compress([TALK]))
    assert bundle.id.hex() in str(caught.value) and bytes(16).hex() in str(caught.value)
    assert "bundle add" in str(caught.value)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_session_that_is_not_there(codec: Codec, index: int) -> None:
    with pytest.raises(UsageError, match="session number"):
        codec.decompress(codec.compress([TALK, TALK]), [index])


# ---- damage


def test_frames_of_nonsense_under_sound_sums(codec: Codec, bundle: FakeBundle) -> None:
    """What a hostile writer can do: every sum holds, and the content is no session."""
    header = Header(bundle.id)
    tokens = np.array([40, 2, 41])  # a chat that starts with text
    cases = [
        Frame(Kind.CHAT, Method.MODEL, 3, content_check(Kind.CHAT, Method.MODEL, 3, tokens), ten_bits(tokens)),
        Frame(Kind.CHAT, Method.BYTES, 2, content_check(Kind.CHAT, Method.BYTES, 2, b"{]"), b"{]"),
        Frame(Kind.CHAT, Method.BYTES, 1, content_check(Kind.CHAT, Method.BYTES, 1, b"\xff"), b"\xff"),
        Frame(Kind.IDS, Method.BYTES, 3, content_check(Kind.IDS, Method.BYTES, 3, b"abc"), b"abc"),
        Frame(Kind.IDS, Method.BYTES, 4, content_check(Kind.IDS, Method.BYTES, 4, b"\xff" * 4), b"\xff" * 4),
        Frame(Kind.IDS, Method.MODEL, 1, 0, ten_bits([40]), patch=b"\x01"),
    ]
    for frame in cases:
        with pytest.raises(CorruptError):
            codec.decompress(pack(header, [frame]))


# ---- thaw


def test_token_ids_of_a_chat_are_its_conversation(codec: Codec, bundle: FakeBundle) -> None:
    with_meta = chat("Hello there, how are you today?", "Fine, thank you for asking me.", id="a-7", tags=["x"])
    bare = chat("Hello there, how are you today?", "Fine, thank you for asking me.")
    reader = Reader(codec.compress([with_meta]))
    assert np.array_equal(codec.token_ids(reader, 0), transcript.to_tokens(bare, bundle.tokenizer))


def test_token_ids_do_not_depend_on_the_method(codec: Codec, bundle: FakeBundle) -> None:
    repeated = chat(*[f"{i % 3}: the same line, once more. " * 20 for i in range(12)])
    reader = Reader(codec.compress([repeated, PROSE, Session("text", b"ab" * 2000), Session("ids", [33, 34])]))
    assert reader.info(0).method is Method.BYTES and reader.frame(2).copied
    expected = [repeated, PROSE, Session("text", b"ab" * 2000), Session("ids", [33, 34])]
    for i, session in enumerate(expected):
        assert np.array_equal(codec.token_ids(reader, i), transcript.to_tokens(session, bundle.tokenizer))


# ---- sizes


@pytest.mark.parametrize(("session", "size"), [
    (chat("hé", "yes", id="not counted"), 6), (Session("chat", [{"role": "user", "content": "abc"}]), 3),
    (Session("chat", {"conversations": [{"from": "human", "value": "abcd"}]}), 4),
    (Session("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "abc"}, {"x": 1}]}]}), 3),
    (Session("chat", {"messages": [{"role": "user", "content": None}, "odd"]}), 5),
    (Session("chat", {"messages": []}), 0), (Session("chat", {"no": "messages"}), 17),
    (Session("chat", {"prompt": "hé", "n": 1}), 22), (Session("chat", [1, 2]), 5), (Session("chat", {1: 2}), 0),
    (Session("text", b"12345"), 5), (Session("ids", [1, 2]), 8),
])
def test_content_bytes(session: Session, size: int) -> None:
    assert content_bytes(session) == size


def test_a_file_that_unpacks_to_very_much_is_decoded_piece_by_piece(codec: Codec) -> None:
    """A few kilobytes stand for hundreds of megabytes: the caller holds one session of them at a time."""
    size, many = 1 << 24, 12
    session = Session("text", bytes(size))
    frame = Reader(codec.compress([session])).frame(0)
    frame = replace(frame, check=content_check(frame.content, frame.method, size, bytes(size)))
    data = pack(Header(codec.bundle.id), [frame] * many)
    assert len(data) < many * size / 1000
    with memory_below(4 * size):
        assert sum(len(found.value) for found in codec.decompress_each(data)) == many * size
