"""What `import pltz` gives: the public names, lazily, over the inputs that users have."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pltz
from pltz.archive import errors as archive_errors
from pltz.coding.codec import Codec
from pltz.coding.options import CodingKeywords, CodingOptions
from pltz.coding.partners import Partners
from pltz.datasets.given import as_session
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.options import CompressKeywords, CompressOptions, DecompressKeywords
from pltz.plt_codec import errors
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.container.frame import Kind
from pltz.plt_codec.types import Encoded, FrameItem

CHAT = {"messages": [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi!"}]}


class FakeCoder:
    """A coder of two bytes per token."""

    def encode(self, sequences: Sequence[Any], **options: Any) -> list[Encoded]:
        return [Encoded(np.asarray(ids, "<u2").tobytes(), 0.0, 1) for ids in sequences]

    def decode(self, items: Sequence[FrameItem], **options: Any) -> list[Any]:
        return [np.frombuffer(item.data, "<u2").astype(np.int64) for item in items]


@dataclass
class FakeTarget:
    """A target whose template is "U:" or "A:" before each text, and whose KV is a count."""

    tokenizer: BundleTokenizer
    tokenizer_json: bytes
    fingerprint: bytes = b"T" * 16
    chunks: list[int | None] = field(default_factory=list)
    writes_as_shipped: bool = True

    def warn_of_control(self, texts: Any) -> None:
        """Find none."""

    def render(self, chat: Any) -> list[int]:
        return self.tokenize("".join(m["role"][0].upper() + ":" + m["content"] for m in chat["messages"]))

    def tokenize(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text.encode())]

    def check_ids(self, ids: Any) -> Any:
        return np.asarray(ids, np.int64)

    def prefill(self, ids: Any, *, chunk: int | None = None) -> tuple[Any, Any]:
        self.chunks.append(chunk)
        return len(ids), SimpleNamespace(is_cuda=False)


@pytest.fixture(scope="module")
def codec(tiny_tokenizer: BundleTokenizer) -> Codec:
    bundle = SimpleNamespace(id=bytes(16), tokenizer=tiny_tokenizer, zstd_dict=b"")
    return Codec(bundle, FakeCoder())


@pytest.fixture(scope="module")
def kin(tiny_tokenizer: BundleTokenizer, tiny_tokenizer_json: Callable[..., bytes]) -> Any:
    """Return a target with the bundle's tokenizer."""
    return FakeTarget(tiny_tokenizer, tiny_tokenizer_json())


@pytest.fixture(scope="module")
def stranger(tiny_tokenizer_json: Callable[..., bytes]) -> Any:
    """Return a target with another tokenizer."""
    return FakeTarget(BundleTokenizer(tiny_tokenizer_json(1536)), tiny_tokenizer_json(1536), b"S" * 16)


# ---- names


def test_importing_pltz_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "transformers", "zstandard", "tokenizers"}
    script = f"import sys, pltz; print(*{{m.split('.')[0] for m in sys.modules}} & {heavy})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_command_line_sees_no_torch_through_the_codec() -> None:
    script = "import sys, pltz; pltz.Session, pltz.open, pltz.api; import pltz.plt_codec.container.file, "
    script += "pltz.coding.codec; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_resolves_and_is_listed() -> None:
    assert sorted(pltz.__all__) == list(pltz.__all__)
    for name in pltz.__all__:
        assert getattr(pltz, name) is not None
    assert pltz.__version__.count(".") == 2


def test_dir_shows_what_is_public_and_nothing_else() -> None:
    """Neither the rooms, nor what the module imports for itself, nor what was loaded since."""
    pltz.compress  # noqa: B018
    assert dir(pltz) == pltz.__all__


@pytest.mark.parametrize("module", [errors, archive_errors])
def test_the_whole_error_tree_is_exported(module: ModuleType) -> None:
    tree = {
        name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, errors.PltzError)
    }
    assert tree <= set(pltz.__all__) and all(getattr(pltz, name) is getattr(module, name) for name in tree)


def test_an_unknown_name_is_an_attribute_error() -> None:
    name = "decode"
    with pytest.raises(AttributeError, match="no attribute 'decode'"):
        getattr(pltz, name)


# ---- compress and decompress


@pytest.mark.parametrize(("given", "sessions"), [
    (CHAT, [Session("chat", CHAT)]), (CHAT["messages"], [Session("chat", CHAT["messages"])]),
    ([CHAT, CHAT], [Session("chat", CHAT)] * 2), ([CHAT["messages"]], [Session("chat", CHAT["messages"])]),
    (Session("text", b"one"), [Session("text", b"one")]),
    (
        ["one", b"two", bytearray(b"three")],
        [Session("text", b"one"), Session("text", b"two"), Session("text", b"three")],
    ),
    ([[33, 34], (35,), np.array([36])], [Session("ids", [33, 34]), Session("ids", [35]), Session("ids", [36])]),
    (json.dumps(CHAT).encode(), [Session("chat", CHAT)]), ((c for c in [CHAT]), [Session("chat", CHAT)]), ([], []),
], ids=["chat", "messages", "chats", "lists", "session", "texts", "ids", "file-bytes", "generator", "nothing"])
def test_what_counts_as_sessions(codec: Codec, given: Any, sessions: list[Session]) -> None:
    assert pltz.decompress(pltz.compress(given, bundle=codec), bundle=codec) == sessions


@pytest.mark.parametrize("given", [7, None, [object()], [["text", 3]]])
def test_what_does_not(codec: Codec, given: Any) -> None:
    with pytest.raises(pltz.UsageError, match="expected"):
        pltz.compress(given, bundle=codec)


def test_paths_on_both_sides(codec: Codec, tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text(json.dumps(CHAT) + "\n" + json.dumps(CHAT) + "\n")
    (tmp_path / "chats.pltz").write_bytes(pltz.compress(tmp_path / "chats.jsonl", bundle=codec))
    for path in (tmp_path / "chats.pltz", str(tmp_path / "chats.pltz")):
        assert pltz.decompress(path, bundle=codec) == [Session("chat", CHAT)] * 2
    with pytest.raises(pltz.UsageError, match="cannot read"):
        pltz.decompress(tmp_path / "missing.pltz", bundle=codec)


def test_options_reach_the_codec(codec: Codec) -> None:
    image = {"messages": [{"role": "user", "content": [{"type": "image", "source": "x"}]}]}
    with pytest.raises(pltz.OpaqueContentError):
        pltz.compress(image, bundle=codec)
    data = pltz.compress(image, bundle=codec, keep_opaque=True)
    assert pltz.decompress(data, bundle=codec, indices=[0])[0].value == image


def test_a_target_keeps_the_ids_it_would_see(codec: Codec, stranger: Any) -> None:
    data = pltz.compress([CHAT, "plain"], bundle=codec, target=stranger)
    header = Reader(data).header
    assert header.target_fingerprint == stranger.fingerprint and header.tokenizer_fingerprint
    found = pltz.decompress(data, bundle=codec, target=stranger)
    assert found == [Session("ids", stranger.render(CHAT)), Session("ids", stranger.tokenize("plain"))]
    with pytest.raises(pltz.TokenizerMismatch):
        pltz.decompress(pltz.compress([[33, 99, 101, 33, 80]], bundle=codec), bundle=codec, target=stranger)
    with pytest.raises(pltz.ContentError, match="UTF-8"):
        pltz.compress([b"\xff"], bundle=codec, target=stranger)


def test_a_tokenizer_by_path_or_bytes(codec: Codec, stranger: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(stranger.tokenizer_json)
    ids = stranger.tokenize("The quick brown fox jumps over a lazy dog.")
    data = pltz.compress([ids], bundle=codec, tokenizer=path)
    assert pltz.decompress(data, bundle=codec, tokenizer=path.read_bytes()) == [Session("ids", ids)]
    with pytest.raises(pltz.UsageError, match="cannot read"):
        pltz.compress([ids], bundle=codec, tokenizer=tmp_path / "missing.json")
    for call in (pltz.compress, pltz.decompress):
        with pytest.raises(pltz.UsageError, match="leave tokenizer out"):
            call(data, bundle=codec, tokenizer=path, target=stranger)


# ---- open


def test_an_open_file_is_a_sequence_of_sessions(codec: Codec) -> None:
    texts = [f"text {i}" for i in range(600)]
    with pltz.open(pltz.compress(texts, bundle=codec), bundle=codec) as file:
        assert len(file) == 600 and file[7].value == b"text 7" and file[-1].value == b"text 599"
        assert [session.value for session in file[2:4]] == [b"text 2", b"text 3"]
        assert [session.value.decode() for session in file] == texts and file.info(3).content.kind == "text"
        with pytest.raises(IndexError):
            file[600]
    with pytest.raises(pltz.UsageError, match="closed"):
        file[0]


def test_a_reader_that_was_given_stays_open(codec: Codec) -> None:
    reader = Reader(pltz.compress(["one"], bundle=codec))
    assert pltz.decompress(reader, bundle=codec) == pltz.decompress(reader, bundle=codec)


def test_a_file_of_an_unknown_bundle_opens_but_does_not_decode(codec: Codec) -> None:
    with pltz.open(pltz.compress(["one"], bundle=codec)) as file:
        assert file.info(0).content is Kind.TEXT
        with pytest.raises(pltz.BundleMismatch):
            file[0]


# ---- thaw


def test_thaw_of_bundle_tokens_into_a_kin(codec: Codec, kin: Any) -> None:
    data = pltz.compress(["zero", CHAT | {"id": 7}], bundle=codec)
    thawed: Any = pltz.thaw(data, kin, 1, bundle=codec)
    expected = codec.token_ids(Reader(pltz.compress(CHAT, bundle=codec)), 0)
    assert thawed.token_ids.tolist() == expected.tolist() and thawed.cache == len(expected)
    assert {"read", "decode", "prefill", "total"} <= thawed.timings.keys()


def test_thaw_into_a_stranger_goes_through_its_template(codec: Codec, stranger: Any) -> None:
    data = pltz.compress([CHAT, "plain"], bundle=codec)
    assert pltz.thaw(data, stranger, bundle=codec).token_ids.tolist() == stranger.render(CHAT)
    assert pltz.thaw(data, stranger, 1, bundle=codec, chunk=8).token_ids.tolist() == stranger.tokenize("plain")
    assert stranger.chunks[-1] == 8


def test_thaw_of_ids_is_the_ids_for_their_target_alone(codec: Codec, kin: Any, stranger: Any) -> None:
    data = pltz.compress([CHAT], bundle=codec, target=stranger)
    assert pltz.thaw(data, stranger, bundle=codec).token_ids.tolist() == stranger.render(CHAT)
    with pytest.raises(pltz.TargetMismatch):
        pltz.thaw(data, kin, bundle=codec)
    with pytest.raises(pltz.TokenizerMismatch):
        pltz.thaw(data, kin, bundle=codec, any_target=True)


def test_as_session_takes_lone_surrogates() -> None:
    assert as_session("\ud800").value == b"\xed\xa0\x80"


# ---- threads


SENTENCES = ("Immutable: any thread may use it.", "Any thread may use it.", "One thread uses it at a time.")


def test_every_class_says_which_threads_may_use_it() -> None:
    for name in pltz.__all__:
        found = getattr(pltz, name)
        if not isinstance(found, type) or issubclass(found, BaseException):
            continue
        said = [sentence for sentence in SENTENCES if sentence in (found.__doc__ or "")]
        assert said, f"{name}: expected one of {SENTENCES} in its docstring"
        if said[0] == SENTENCES[0]:  # and that it is true
            parameters = getattr(found, "__dataclass_params__", None)
            assert issubclass(found, tuple) or (parameters is not None and parameters.frozen), name


# ---- keywords


def test_what_is_no_session_and_no_keyword_is_refused_by_mypy_too(codec: Codec) -> None:
    """mypy (strict) reports an ignore that is not needed, so each of these lines proves what it catches."""
    with pytest.raises(pltz.UsageError, match="expected sessions"):
        pltz.compress(3.5, bundle=codec)  # type: ignore[arg-type]
    for call in (
        lambda: pltz.compress("text", bundel=codec),  # type: ignore[call-arg]
        lambda: pltz.decompress(b"", bundel=codec),  # type: ignore[call-arg]
        lambda: pltz.open(b"", bundel=codec),  # type: ignore[call-arg]
        lambda: pltz.thaw(b"", None, bundel=codec),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match="bundel"):
            call()
    with pytest.raises(TypeError, match="layout"):
        pltz.decompress(b"", layout="fast")  # type: ignore[call-arg]
    with pytest.raises(pltz.UsageError, match="layout"):
        pltz.compress(["text"], bundle=codec, layout="slow")  # type: ignore[arg-type]


def test_the_options_are_written_down_once() -> None:
    """Check that keywords and frozen objects have the same fields, and that the codec takes all that are for it."""
    said = set(CompressKeywords.__annotations__)
    assert said == {field.name for field in dataclasses.fields(CompressOptions)}
    assert set(DecompressKeywords.__annotations__) == {field.name for field in dataclasses.fields(Partners)}
    taken = {field.name: field.default for field in dataclasses.fields(CodingOptions)}
    assert set(taken) == set(CodingKeywords.__annotations__)
    chosen = CompressOptions(layout="fast", keep_opaque=True)
    assert set(chosen.coding) == said - set(DecompressKeywords.__annotations__) - {"format", "exact", "dropped"}
    assert CompressOptions().coding == taken and chosen.coding["layout"] == "fast" and chosen.coding["keep_opaque"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.layout = "default"  # type: ignore[misc]


def test_one_text_and_one_row_of_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pltz.UsageError, match="goes into a list"):
        pltz.compress("hello there")
    assert pltz.decompress(pltz.compress(["hello there"]))[0].value == b"hello there"
    for ids in ([1, 2, 3], (1, 2, 3), np.array([1, 2, 3])):
        [session] = pltz.decompress(pltz.compress(ids))
        assert session.kind == "ids" and session.value.tolist() == [1, 2, 3]
    assert len(pltz.decompress(pltz.compress([[1, 2], [3]]))) == 2
