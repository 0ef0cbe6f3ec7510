"""The second reader reads golden files, and all that the product writes, to the same bits."""

import ast
import importlib.util
import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from tokenizers import Tokenizer

from pltz.benchmarks.random_weights import random_weights
from pltz.coding.codec import Codec
from pltz.coding.log import table
from pltz.coding.log.above import Above
from pltz.models.bundle.bundle import Bundle as ProductBundle
from pltz.models.bundle.tokenizer import SPECIALS, BundleTokenizer
from pltz.models.session import json_value, spelling, transcript
from pltz.models.session.session import Session
from pltz.models.session.transcript import to_tokens
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.errors import ContentError, CorruptError, LimitError, PltzError
from pltz.plt_codec.lanes import Layout
from tests.coding.log import forged
from tests.coding.log.frame_coder import FrameCoder
from tests.coding.log.logs import LOGS
from tests.examples import examples
from tests.models import target_tokenizers as targets
from tests.models.session.test_transcript import chats, json_values
from tests.second_reader import chat, log
from tests.second_reader.bridge import Bridge, Library
from tests.second_reader.container import File
from tests.second_reader.fields import Damaged, Newer, u32
from tests.second_reader.model import Bundle, Model, Vocabulary, tokens_of
from tests.second_reader.table import Log

ROOT = Path(__file__).resolve().parents[2]
HERE, GOLDEN = Path(__file__).parent, ROOT / "tests/golden"
CONTAINERS = sorted((GOLDEN / "containers").glob("*.pltz"))
FROZEN = sorted((GOLDEN / "mini").glob("*.pltz"))
LISTED = {"numpy", "pyppmd", "tokenizers", "zstandard", "safetensors", "cryptography"}
MOST_LINES = 2_000


@cache
def bundle(name: str) -> Bundle:
    """Return the second reader's bundle of a name."""
    return Bundle(ROOT / "models/bundles" / name)


def name_of(file: Path) -> str:
    """Return the name of the bundle that a file names by its id."""
    about = [json.loads(path.read_text("utf8")) for path in ROOT.glob("models/bundles/*/bundle.json")]
    return str({one["id"]: one["name"] for one in about}[file.stem[:32]])


def test_it_shares_no_code_with_the_product_and_stays_small() -> None:
    lines = 0
    for path in HERE.glob("*.py"):
        lines += len(path.read_text("utf8").splitlines()) if not path.name.startswith("test_") else 0
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules if not path.name.startswith("test_") else []:
                top = str(module).partition(".")[0]
                known = top in LISTED | sys.stdlib_module_names or str(module).startswith("tests.second_reader")
                assert known, f"{path.name} imports {module}"
    assert lines <= MOST_LINES


# ---- containers, without their bundle


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_containers_are_read_as_the_product_reads_them(path: Path) -> None:
    """A file of the product's tests has no bundle: frames of a model are compared as they are stored."""
    data = path.read_bytes()
    if path.stem.startswith("bad-"):
        with pytest.raises((Damaged, Newer)):
            file = File(data)
            for number in range(len(file.sessions)):
                decode(file, number)
        return
    file, product = File(data), Reader(data)
    assert len(file.sessions) == len(product)
    for number, frame in enumerate(file.sessions):
        if frame.coding.content >= 0:
            other = product.frame(number)
            assert (*frame.coding[:2], frame.units) == (other.content, other.method, other.count)
            decode(file, number)
    checks = [file.content_check(n, file.content(n)[1]) for n, f in enumerate(file.sessions) if f.coding.method]
    if len(checks) == len(file.sessions) and checks:
        assert crc32(u32(checks)) == file.contents_check


def decode(file: File, number: int) -> None:
    """Decode a session of bytes, or all that stands before the frame of a model."""
    try:
        file.content(number)
    except LookupError:
        assert file.sessions[number].coding.method == 0


# ---- files of a bundle


def check(path: Path, numbers: Iterable[int]) -> None:
    data, name = path.read_bytes(), name_of(path)
    file, codec = File(data, bundle(name)), Codec.load(name)
    assert file.bundle_id == bundle(name).id
    sessions = codec.decompress(data)
    for number in numbers:
        session = sessions[number]
        found = np.array(file.value(number), np.int32) if session.kind == "ids" else file.value(number)
        assert Session(session.kind, found) == session
        if session.kind != "text":
            assert file.input_bytes(number) == session.to_input_bytes()


HOSTILE = {
    "deep": b"[" * 201 + b"]" * 201, "deepest": b"[" * 100_000, "many": b"[" + b"0," * (1 << 21) + b"0]",
    "key twice": b'{"a":1,"a":2}', "minus zero": b"-0", "infinite": b"1e999", "long": b"1" * 4001, "no number": b"NaN",
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_json_is_refused(case: str) -> None:
    with pytest.raises(Damaged):
        chat.value_of([("meta", HOSTILE[case])])
    assert chat.value_of([("meta", b"[" * 200 + b"]" * 200)])


@pytest.mark.parametrize("count", [68, 69])
def test_moulds_that_are_not_said_have_a_limit(count: int) -> None:
    """A mould of 1,000 bytes, said once, then again: 65,536 bytes, and 4 for each of the 1,005 of the segments."""
    said = [("user", b"a"), ("message", b'[{"x":"%s"}]' % (b"y" * 990)), ("user", b"bc"), ("message", b"[]")]
    row = [*said, *[("user", b"")] * count]
    ids = [(SPECIALS.index(name), text) for name, text in row]
    if count == 69:
        with pytest.raises(Damaged, match="unsaid"):
            chat.value_of(row)
        with pytest.raises(CorruptError, match="moulds"):
            transcript._value(ids)
    else:
        assert len(chat.value_of(row)["messages"]) == 70 and chat.value_of(row) == transcript._value(ids)


@pytest.mark.parametrize("path", [path for path in FROZEN if name_of(path) == "nano"], ids=lambda path: path.stem[-7:])
def test_golden_files_of_nano(path: Path) -> None:
    check(path, (0, 4, 5, 6, 7))


@pytest.mark.slow
@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem[:4] + path.stem[-8:])
def test_all_sessions_of_golden_files(path: Path) -> None:
    check(path, range(8) if name_of(path) == "nano" else (4, 5, 6, 7))


SHARED = "The tower keeps what every session has in common, and a session that thaws reads no more than it needs. "


def test_neighbours_copies_and_writings_of_a_file() -> None:
    """A file whose sessions share passages has contexts, copies and copies into contexts."""
    talks = [[SHARED * 2, f"Question {n}?", SHARED + f"Answer {n}. " + SHARED] for n in range(3)]
    sessions = [
        Session("chat", {"messages": [{"role": "user", "content": text} for text in texts]}, 10 * n)
        for n, texts in enumerate(talks)
    ]
    data = Codec.load("nano").compress([*sessions, Session("text", SHARED.encode() * 2)], exact=True)
    file = File(data, bundle("nano"))
    assert any(frame.step for frame in file.sessions) and any(frame.copied for frame in file.sessions)
    for number, session in enumerate(sessions):
        assert file.value(number) == session.value and file.input_bytes(number) == session.to_input_bytes()
    assert file.value(3) == SHARED.encode() * 2
    contents = [file.content(number)[1] for number in range(4)]
    assert crc32(u32(file.content_check(*row) for row in enumerate(contents))) == file.contents_check


@pytest.mark.parametrize("gated", [False, True], ids=["contract 1", "contract 2"])
@pytest.mark.parametrize("extreme", [False, True], ids=["usual", "extreme"])
@pytest.mark.parametrize("layout", [(1, 512), (1, 64), (4, 40)], ids=["default", "1 lane", "4 lanes"])
def test_frames_of_random_models(gated: bool, extreme: bool, layout: tuple[int, int]) -> None:
    weights = random_weights(7, block=128, memory=48, gated=gated, extreme=extreme)
    coder, model = TokenCoder(TorchEngine(weights)), Model(weights.shape.to_dict(), dict(weights.tensors))
    rng = np.random.default_rng(3)
    for length, before in ((1, 0), (100, 60), (301, 0)):
        tokens, context = rng.integers(0, 512, length), rng.integers(0, 512, before)
        [frame] = coder.encode([tokens], contexts=[context], layouts=Layout(*layout))
        assert tokens_of(model, frame.data, length, layout, context.tolist()) == tokens.tolist()


# ---- logs


@pytest.mark.parametrize("path", sorted((GOLDEN / "logs").glob("*.frame")), ids=lambda path: path.stem[33:])
def test_log_frames(path: Path) -> None:
    wanted, found, _ = golden_log(path)
    assert found == wanted


@cache
def golden_log(path: Path) -> tuple[bytes, bytes, list[log.Table]]:
    """Return the content of a golden frame, and what the second reader makes of it and leaves."""
    head, _, case = path.stem.rpartition("-")
    content, up, *_ = log_maker().CASES[case]
    above = golden_log(path.with_name(f"{head}-{up}.frame"))[2] if up else []
    return content, *log.decoded(path.read_bytes(), len(content), above, bundle("mini"))


@cache
def log_maker() -> ModuleType:
    """Return make.py of the golden log frames."""
    spec = importlib.util.spec_from_file_location("golden_logs", GOLDEN / "logs/make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LINES = (
    "@@ -1,2 +1,3 @@", "@@", "@@ more", "*** Add File: a.py", " same", "+new", "-old", "   7\u2192def f():",
    "  8\u2192", "9: x", "src/a.py:12:import os", "src/a.py:13:import re", "> 14| y", "0003| z", "0004| w", "{}",
)  # fmt: skip


@pytest.mark.parametrize("by_model", [False, True], ids=["zstd", "model"])
def test_grown_logs(by_model: bool) -> None:
    make, product, second = log_maker(), ProductBundle.load("nano"), bundle("nano")
    coder = FrameCoder(product, product.coder)
    long = json.dumps({"said": "a word, " * 9000 + "\ud800"}).encode() + b"\n"
    up, tables, methods = None, list[log.Table](), set[bool]()
    for content in (make.log(0, 8), b"\n" + long, make.log(8, 12), make.log(12, 14)):
        [frame] = coder.encode([(content, up)], by_model=by_model)
        found, tables = log.decoded(frame, len(content), tables, second)
        assert found == content
        methods.add(bool(frame[0] & 1))
        up = Above.of(content, up)
    assert methods == ({False, True} if by_model else {False})


def test_logs_of_a_file_after_others() -> None:
    sessions = [Session("text", log_maker().log(0, 30 + n)) for n in range(3)]
    file = File(Codec.load("nano").compress(sessions), bundle("nano"))
    assert [bool(frame.step) for frame in file.sessions] == [False, True, True]
    assert [file.value(number) for number in range(3)] == [session.value for session in sessions]


@pytest.mark.parametrize("size", [70_000, 140_000])
@pytest.mark.parametrize("unit", ["words and\n more ", "\u4f60", "x", f"{'b' * 999}\udcff"], ids=len)
def test_bpe_of_any_bytes(unit: str, size: int) -> None:
    data = (unit * size).encode("utf8", "surrogateescape")[:size]
    assert bundle("nano").bpe(data) == ProductBundle.load("nano").tokenizer.encode(data).tolist()


TABLES = json.loads((GOLDEN / "tables/version-1.json").read_text("utf8"))


@pytest.mark.parametrize("row", TABLES, ids=lambda row: row["name"])
def test_golden_tables(row: dict[str, Any]) -> None:
    past, first = Log(), TABLES.index(row) - row["part"] + bool(row["part"])
    for one in TABLES[first : first + max(1, row["part"])]:  # a whole log, or the thirds up to one
        texts = [text.encode() for _, text in one["pieces"]]
        found = past.join(bytes.fromhex(one["columns"]), bytes.fromhex(one["opaque"]), texts, one["count"])
        assert found in LOGS[row["name"]]
    assert row["part"] or found == LOGS[row["name"]]


def test_blocks_indented_beyond_their_log_are_refused() -> None:
    columns, block = forged.columns([10], [], [], (3, 7, 5000, 0))  # null, behind 5000 blanks
    assert Log().join(columns, b"", [], len(block)) == block.encode()
    with pytest.raises(Damaged, match="indentation"):
        Log().join(columns, b"", [], 4000)


@settings(max_examples=examples(100))
@given(
    values=st.lists(chats | json_values, max_size=4),
    lines=st.lists(st.sampled_from(LINES) | st.text(max_size=9), max_size=9),
    number=st.integers(0, 15),
)
def test_tables_of_any_log(values: list[Any], lines: list[str], number: int) -> None:
    """Values in a spelling, then the same in a field of each, and lines with marks."""
    try:
        text = "\n".join([*(spelling.spell(value, number) for value in values), *lines])
        text += "\n" + json.dumps({"said": "\n".join(lines * 3), "was": [*values, 1.50, "2026-03-04T05:06:07.1Z"]})
    except (RecursionError, ValueError):
        assume(False)
    data = text.encode("utf-8", "surrogatepass")
    split = table.split(data)
    texts = [piece.text.encode("utf-8", "surrogatepass") for piece in split.pieces]
    assert Log().join(split.columns, split.opaque, texts, len(data)) == data


# ---- chats


def vocabulary(tokenizer: BundleTokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer of the product's tests."""
    special = {number: name for name, number in tokenizer.specials.items()}
    return Vocabulary(special, {n: piece for n, piece in enumerate(tokenizer.pieces) if n not in special})


@settings(max_examples=examples(300))
@given(value=chats | json_values)
def test_tokens_of_any_chat_become_its_value(value: Any, tiny_tokenizer: BundleTokenizer) -> None:
    try:
        tokens = to_tokens(Session("chat", value), tiny_tokenizer)
    except PltzError:
        assume(False)
    found = chat.session(0, tokens.tolist(), vocabulary(tiny_tokenizer))
    assert json_value.difference(value, found) is None


@settings(max_examples=examples(300))
@given(value=chats | json_values)
def test_bytes_of_any_chat_are_those_of_the_product(value: Any) -> None:
    session = Session("chat", value)
    try:
        line, stored = session.to_input_bytes(), session.to_bytes()
    except (ContentError, LimitError):
        assume(False)
    assert chat.input_bytes(value) == line and json_value.difference(value, chat.value_of_bytes(stored)) is None


@settings(max_examples=examples(100))
@given(value=json_values, writing=st.integers(1, chat.WRITINGS))
def test_writings_are_those_of_the_product(value: Any, writing: int) -> None:
    assert chat.WRITINGS == spelling.WRITINGS - 1
    try:
        json_value.check(value)
        want = spelling.written(value, writing)
    except (UnicodeEncodeError, ContentError):
        assume(False)
    assert chat.input_bytes(value, writing) == want


def test_indents_that_swell_a_value_are_refused() -> None:
    value: Any = [0] * 2000
    for _ in range(80):
        value = [value]
    for write, error in (chat.input_bytes, Damaged), (spelling.written, CorruptError):
        assert len(write(value, 1 + 3 * 11)) < 250_000  # a tab per depth
        with pytest.raises(error, match="swell"):
            write(value, 1 + 3 * 9)  # four blanks


# ---- the bridge


def hugging_face(tokenizer: str) -> Library:
    """Return what the library `tokenizers` makes of a tokenizer.json."""
    made = Tokenizer.from_str(tokenizer)
    return lambda text: list(made.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", sorted(targets.MAKERS))
def test_ids_of_other_tokenizers(kind: str) -> None:
    tokenizer = targets.target(kind)
    second = Bridge(tokenizer.to_str(), vocabulary(targets.bundle()), hugging_face)
    rng = np.random.default_rng(5)
    canonical = targets.encode(kind, targets.PAGE)
    size = tokenizer.get_vocab_size()
    for ids in (
        canonical, [*canonical[:30], *rng.integers(0, size, 3).tolist(), *canonical[31:60], *canonical[62:]],
        rng.integers(0, size, 60).tolist(), [],
    ):
        tokens, patch = targets.bridge(kind).to_bundle(ids)
        assert second.ids(tokens.tolist(), patch) == ids
