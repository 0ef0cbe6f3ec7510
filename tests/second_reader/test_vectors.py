"""The second reader reads the vectors of each layer, and the product still writes them."""

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from safetensors.numpy import load

from pltz.models.session import json_value
from pltz.models.session.transcript import from_tokens
from pltz.plt_codec import ppmd
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.range_coder import RangeDecoder as ProductDecoder
from pltz.plt_codec.zstd import Fallback
from tests.loaded import module_at
from tests.second_reader import chat
from tests.second_reader.bridge import Bridge, Library
from tests.second_reader.container import File
from tests.second_reader.fields import Damaged, Fields, block, column, fallback, u32
from tests.second_reader.model import Bundle, Model, RangeDecoder, Vocabulary, layout_of, tokens_of
from tests.second_reader.ppmd import by_ppmd
from tests.second_reader.sealed import Keyring, unseal
from tests.second_reader.table import Contexts, Decisions

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests/golden/vectors"
NAMES = (
    *("varints", "columns", "blocks", "fallback", "ppmd", "range_coder", "model", "containers", "chats", "spellings"),
    *("decisions", "patches", "boxes", "keys"),
)


@cache
def maker() -> ModuleType:
    """Return make.py beside the vectors."""
    return module_at(VECTORS / "make.py")


def read(name: str) -> Any:
    """Return the vectors of a layer."""
    return json.loads((VECTORS / f"{name}.json").read_text("utf8"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fallback"])
def test_the_product_still_writes_them(name: str) -> None:
    assert tuple(maker().VECTORS) == NAMES
    assert maker().text_of(maker().VECTORS[name]()) == (VECTORS / f"{name}.json").read_text("utf8")


def test_small_models_are_still_those_of_the_product() -> None:
    for contract in (1, 2):
        assert maker().tensors(contract) == (VECTORS / f"model-{contract}.safetensors").read_bytes()


def test_integers_and_columns() -> None:
    for vector in read("varints"):
        fields = Fields(bytes.fromhex(vector["bytes"]))
        assert fields.varint() == vector["number"]
        fields.end()
    for vector in read("columns"):
        fields = Fields(bytes.fromhex(vector["bytes"]))
        assert column(fields, len(vector["numbers"])) == vector["numbers"]
        fields.end()


def test_blocks() -> None:
    for vector in read("blocks"):
        data, at = bytes.fromhex(vector["bytes"]), vector["offset"]
        found = block(bytes(at) + data, at, bytes.fromhex(vector["salt"]), (1, 4, 5, 12, 13))
        assert found.end == at + len(data) and found.parts.rest().hex() == vector["parts"]
        assert [one.hex() for one in found.bitstrings] == vector["bitstrings"]
        for number, values in vector["columns"].items():
            assert found.columns[int(number)] == values
        with pytest.raises(Damaged):
            block(bytes(at) + data[:-1] + bytes([data[-1] ^ 1]), at, bytes.fromhex(vector["salt"]), (1, 4, 5, 12, 13))


def test_fallback_bytes() -> None:
    for vector in read("fallback"):
        content, dictionary, data = map(bytes.fromhex, vector.values())
        assert fallback(data, len(content), dictionary) == content
        assert Fallback(dictionary).decompress(data, len(content)) == content  # each release of zstd may write others


def test_ppmd_bytes() -> None:
    for vector in read("ppmd"):
        text, past, data = map(bytes.fromhex, vector.values())
        assert by_ppmd(data, len(text), past) == ppmd.decode(data, len(text), past) == text
        assert ppmd.encode(text, past) == data


@pytest.mark.parametrize("vector", read("range_coder"), ids=lambda vector: vector["case"])
def test_range_coder(vector: dict[str, Any]) -> None:
    data, refused = bytes.fromhex(vector["bytes"]), vector.get("refused", False)
    decoder, product = RangeDecoder(data), ProductDecoder(data)
    for low, frequency in vector["symbols"]:
        cumulative = np.unique([0, low, low + frequency, 1 << 24])
        symbol = decoder.symbol(cumulative)
        assert cumulative[symbol] == low and product.decode(np.diff(cumulative)[None]).tolist() == [symbol]
    assert product.spent == refused
    if refused:
        with pytest.raises(Damaged):
            decoder.end()
    else:
        decoder.end()


@pytest.mark.parametrize("contract", ["1", "2"])
def test_positions_and_frames_of_a_small_model(contract: str) -> None:
    vectors = read("model")[contract]
    model = Model(vectors["shape"], load((VECTORS / f"model-{contract}.safetensors").read_bytes()))
    memory = model.blank()
    for vector in vectors["positions"]:
        [x] = model.run([vector["input"]], [vector["position"]], memory)
        assert x.tolist() == vector["x of 2.5"] and model.class_frequencies(x).tolist() == vector["classes of 3"]
        assert model.member_frequencies(x, vector["class of 4"]).tolist() == vector["members of 4"]
    for frame in vectors["frames"]:
        layout, data = tuple(frame["layout"] or layout_of(0, len(vectors["tokens"]))), bytes.fromhex(frame["bytes"])
        assert tokens_of(model, data, len(vectors["tokens"]), layout, frame["context"]) == vectors["tokens"]


def test_containers() -> None:
    for vector in read("containers"):
        file = File(bytes.fromhex(vector["bytes"]))
        for number, (frame, wanted) in enumerate(zip(file.sessions, vector["sessions"], strict=True)):
            assert (frame.units, frame.data.hex()) == (wanted["count"], wanted["frame"])
            assert (frame.copied, frame.step) == (wanted["copied"], wanted["step"])
            assert frame.coding.content | frame.coding.method << 2 == bytes.fromhex(wanted["coding"])[0] & 15
            content = bytes.fromhex(wanted["content"])
            found: Any = np.frombuffer(content, "<u4").tolist() if not frame.coding.method else content
            assert file.content_check(number, found) == wanted["content check"]
        assert crc32(u32(wanted["content check"] for wanted in vector["sessions"])) == file.contents_check


@cache
def nano() -> tuple[Bundle, Any]:
    """Return the bundle `nano` of the second reader and of the product."""
    from pltz.models.bundle.bundle import Bundle as ProductBundle

    return Bundle(ROOT / "models/bundles/nano"), ProductBundle.load("nano")


@pytest.mark.parametrize("vector", read("chats"), ids=lambda vector: vector["rule"])
def test_chats(vector: dict[str, Any]) -> None:
    second, product = nano()
    segments = [(name, text.encode("utf-8", "surrogatepass")) for name, text in vector["segments"]]
    if vector.get("refused"):
        with pytest.raises(Damaged):
            chat.value_of(segments)
        ids = [token for name, text in segments for token in (product.tokenizer.specials[name], *encode(product, text))]
        with pytest.raises(CorruptError):
            from_tokens("chat", ids, product.tokenizer)
        return
    value = vector["value"]
    for found in (
        chat.value_of(segments),
        chat.session(0, vector["nano"], second),
        chat.value_of_bytes(vector["stored"].encode("utf-8", "surrogatepass")),
        from_tokens("chat", vector["nano"], product.tokenizer).value,
    ):
        assert json_value.difference(value, found) is None
    assert chat.input_bytes(value) == vector["written"].encode()


def encode(product: Any, text: bytes) -> list[int]:
    """Return the tokens of a text."""
    ids: list[int] = product.tokenizer.encode(text).tolist()
    return ids


def test_spellings() -> None:
    for vector in read("spellings"):
        assert chat.spelled(vector["value"], vector["spelling"]) == vector["text"]


@pytest.mark.parametrize("vector", read("decisions"), ids=lambda vector: vector["case"])
def test_decisions(vector: dict[str, Any]) -> None:
    code = Decisions()
    code.begin(bytes.fromhex(vector["bytes"]))
    contexts = Contexts(code)
    for kind, where, value in vector["coded"]:
        assert (code.raw if kind == "raw" else getattr(contexts, kind))(where) == value


@pytest.mark.parametrize("vector", read("patches"), ids=lambda vector: vector["patch"])
def test_patches(vector: dict[str, Any]) -> None:
    target = {"model": {"vocab": {"z": vector["V"] - 1}}, "added_tokens": []}
    library: Library = lambda text: list(vector["canonical"])
    bridge = Bridge(json.dumps(target), Vocabulary({}, {65: b"a"}), lambda _: library)
    tokens = [65] if vector["canonical"] else []
    assert bridge.ids(tokens, bytes.fromhex(vector["patch"])) == vector["ids"]


def test_boxes() -> None:
    for vector in read("boxes"):
        key, box, *about = map(bytes.fromhex, (vector["key"], vector["box"], *vector["bound to"]))
        assert unseal(key, box, *about) == bytes.fromhex(vector["content"])
        with pytest.raises(Damaged):
            unseal(key, box, *about, b"")


def test_keys() -> None:
    for vector in read("keys"):
        archive, file, name_key = map(bytes.fromhex, (vector["archive"], vector["file"], vector["name key"]))
        files = {f"keys/{archive.hex()}-{vector['generation']:08x}-0": file}
        for secret in map(bytes.fromhex, vector["secrets"]):
            found = Keyring(files, archive, secret)
            assert ([key.hex() for key in found.wraps.values()], found.names) == (vector["wrap keys"], name_key)
        with pytest.raises(Damaged):
            Keyring(files, archive, b"a key that opens nothing")
