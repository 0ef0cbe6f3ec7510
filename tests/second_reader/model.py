"""Bundle, integer model and frames, as models/FORMAT.md and plt_codec/NUMERICS.md describe them.

Products of 8-bit numbers are sums of floats here wherever each partial sum is a whole number that a float holds: they
are exact, and BLAS is fast. Everything else is int64.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from tokenizers import Tokenizer

from tests.second_reader.fields import Damaged

Array = np.ndarray[Any, np.dtype[Any]]
CLASS, LANE_MARK = 128, 0
BIG = (1 << 22) - 1
TYPES = {"I8": "<i1", "I16": "<i2", "I32": "<i4"}


def digest(person: str, *parts: bytes, size: int = 16) -> bytes:
    """Return the BLAKE2b of parts, one after the other."""
    return hashlib.blake2b(b"".join(parts), digest_size=size, person=person.encode()).digest()


def tensors_of(data: bytes) -> dict[str, Array]:
    """Return the tensors of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    body = data[8 + size :]
    head = {name: entry for name, entry in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"}
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in head.items()
    }


class Vocabulary:
    """The names of special tokens, and the bytes of all others."""

    def __init__(self, special: dict[int, str], bytes_of: dict[int, bytes]) -> None:
        self.special, self._bytes_of = special, bytes_of
        self._of_byte = {piece[0]: number for number, piece in bytes_of.items() if len(piece) == 1}

    def spell(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of tokens that are no specials."""
        try:
            return b"".join(self._bytes_of[i] for i in ids)
        except KeyError as error:
            raise Damaged(f"token {error} in a text") from error

    def byte_ids(self, data: bytes) -> list[int]:
        """Return a token per byte."""
        return [self._of_byte[byte] for byte in data]


def blocks(data: bytes) -> Iterator[bytes]:
    """Yield the blocks of bytes that go through BPE one by one."""
    while len(data) > 65536:
        cut = data.rfind(b"\n", 32768, 65536) + 1 or max(data.rfind(b" ", 32768, 65536), 0)
        cut = cut or next(at for at in (65536, 65535, 65534, 65533) if data[at] & 0xC0 != 0x80 or at == 65533)
        yield data[:cut]
        data = data[cut:]
    yield data


def byte_letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


def rs(a: Any, n: int) -> Any:
    """Shift to the right and round half up."""
    return (a + (1 << n - 1)) >> n


def clamp(a: Any, n: int) -> Any:
    """Hold numbers to -n .. n."""
    return np.clip(a, -n, n)


class Model:
    """The integer model, and the keys and values of what it has seen in a `Memory`."""

    def __init__(self, shape: dict[str, Any], tensors: dict[str, Array]) -> None:
        self.layers, self.width, self.classes = shape["layers"], shape["d"], shape["vocab"] // CLASS
        self.heads, self.key_heads, self.head = shape["heads"], shape["kv_heads"], shape["head_dim"]
        self.block, self.memory = shape["block"], shape["memory"]
        self.norm_gain, self.head_gain, self.gated = shape["norm_gain"], shape["head_gain"], shape.get("gated", False)
        self.bytes = {name: tensor for name, tensor in tensors.items() if tensor.dtype.itemsize == 1}
        self.t = {name: tensor.astype(np.int64) for name, tensor in tensors.items() if tensor.dtype.itemsize > 1}
        self.float = {
            name: np.ascontiguousarray(tensor.T, np.float32 if tensor.shape[1] <= 512 else np.float64)
            for name, tensor in self.bytes.items()
            if not name.startswith(("embed", "shift"))
        }  # 512 products of at most 255 * 127 stay below 2^24

    def _norm(self, x: Array, gain: int, gains: Array | None = None) -> Array:
        roots = [max(1, isqrt(total)) for total in (x * x).sum(-1).ravel().tolist()]
        t = np.array([(gain << 32) // root for root in roots], np.int64).reshape(x.shape[:-1])[..., None]
        found = rs(x * t, 40) if gains is None else rs(rs(x * t, 32) * gains, 20)
        return np.asarray(clamp(found, 127))

    def _hidden_norm(self, x: Array, name: str) -> Array:
        return self._norm(x, self.norm_gain, self.t[name] if self.gated else None)

    def _times(self, name: str, a: Array) -> Array:
        weights = self.float[name + ".w"]
        y = rs((a.astype(weights.dtype) @ weights).astype(np.int64) * self.t[name + ".m"], 24)
        return np.asarray(clamp(y, 1 << 30) if self.gated else y)

    def _turned(self, y: Array, places: Array) -> Array:
        angle = ((places[:, None] * self.t["table.phase"]) >> 10) & 1023
        cos, sin = self.t["table.cos"][angle][:, None], self.t["table.sin"][angle][:, None]
        a, b = y[..., : self.head // 2], y[..., self.head // 2 :]
        return np.concatenate([rs(a * cos - b * sin, 14), rs(a * sin + b * cos, 14)], -1)

    def run(self, ids: Sequence[int], places: Sequence[int], memory: Memory) -> Array:
        """Return residuals (n, d) of n inputs, which see the memory and each other, and add them to the memory."""
        at, n = np.array(places, np.int64), len(ids)
        rows = np.array(ids)
        x = clamp(rs(self.bytes["embed.w"][rows].astype(np.int64) * self.t["embed.m"][rows][:, None], 16), BIG)
        turned = (self.heads + self.key_heads) * self.head
        memory.add(at)
        for layer in range(self.layers):
            name = f"layer.{layer}."
            y = self._times(name + "qkv", self._hidden_norm(x, name + "norm_in"))
            qk = clamp(y[:, :turned], (1 << 15) - 1).reshape(n, -1, self.head)
            qk = self._turned(qk, at)
            qk = clamp(rs(qk, 7), 127) if self.gated else self._norm(qk, self.head_gain)
            v = clamp(y[:, turned:], 127).reshape(n, self.key_heads, self.head)
            keys, values = memory.see(layer, qk[:, self.heads :], v)
            o = self._attend(qk[:, : self.heads], keys, values, self.t[name + "heat"])
            x = clamp(x + self._times(name + "out", o), BIG)
            a = self._hidden_norm(x, name + "norm_mid")
            if self.gated:
                g = clamp(self._times(name + "gate", a), 511)
                h = clamp(rs(self.t["table.act"][g + 511] * clamp(self._times(name + "up", a), 32767), 16), 127)
            else:
                u = np.clip(self._times(name + "up", a), 0, 255)
                h = rs(u * u, 8)
            x = clamp(x + self._times(name + "down", h), BIG)
        return np.asarray(x)

    def _attend(self, q: Array, keys: Array, values: Array, heat: Array) -> Array:
        out, share = [], self.heads // self.key_heads
        for head in range(self.heads):
            group = head // share
            s = (q[:, head].astype(np.float32) @ keys[:, group].T).astype(np.int64)
            e = np.minimum(((s.max(1, keepdims=True) - s) * heat[head]) >> 16, 1023)
            w = rs(self.t["table.exp"][e & 63], 5) >> (e >> 6)
            p = rs(w * ((1 << 40) // w.sum(1, keepdims=True)), 24)
            out.append(clamp(rs((p.astype(np.float64) @ values[:, group]).astype(np.int64), 15), 127))
        return np.concatenate(out, 1)

    def class_frequencies(self, x: Array) -> Array:
        """Return cumulative frequencies (G + 1,) of the classes after a residual (d,)."""
        a = self._hidden_norm(x[None], "norm_out")
        return self._cumulative((self._times("class", a) + self.t["class.b"])[0])

    def member_frequencies(self, x: Array, of: int) -> Array:
        """Return cumulative frequencies (129,) of the members of a class."""
        z = clamp(x + rs(self.bytes["shift.w"][of].astype(np.int64) * self.t["shift.m"][of], 16), BIG)
        a = self._hidden_norm(z[None], "norm_out")[0]
        rows = slice(of * CLASS, of * CLASS + CLASS)
        logits = rs((self.bytes["embed.w"][rows].astype(np.int64) @ a) * self.t["member.m"][rows], 24)
        logits = clamp(logits, 1 << 30) if self.gated else logits
        return self._cumulative(logits + self.t["member.b"][rows])

    def _cumulative(self, logits: Array) -> Array:
        e = np.minimum(logits.max() - logits, 1983)
        sums = np.concatenate([[0], np.cumsum(self.t["table.exp"][e & 63] >> (e >> 6))])
        n = len(logits)
        rate = (((1 << 24) - n) << 20) // int(sums[-1])
        cumulative = np.arange(n + 1) + ((sums * rate) >> 20)
        cumulative[n] = 1 << 24
        return np.asarray(cumulative)


class Bundle(Vocabulary):
    """A bundle's folder: weights, the bytes and names of its tokens, its dictionary, its identity."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "bundle.json").read_text("utf8"))
        if about["format"] != 1 or about["contract"] not in (1, 2):
            raise Damaged("a bundle of another format")
        self.contract, self.shape = about["contract"], about["shape"]
        self.tensors: dict[str, Array] = {}
        for name, entry in about["files"].items():
            data = (folder / name).read_bytes()
            if len(data) != entry["size"] or hashlib.blake2b(data, digest_size=16).hexdigest() != entry["blake2b"]:
                raise Damaged(f"{name} differs from its digest")
            if name.endswith(".zst"):
                data = zstandard.ZstdDecompressor().decompress(data)
            if name.startswith("weights-"):
                self.tensors |= tensors_of(data)
            elif name.startswith("tokenizer"):
                self.tokenizer = data.decode()
            else:
                self.dictionary = data
        self.fingerprint = digest("pltz tokenizer", self.tokenizer.encode())
        rows = [json.dumps([self.contract, self.shape], sort_keys=True, separators=(",", ":")).encode()]
        for name, tensor in sorted(self.tensors.items()):
            kind = {1: "|i1", 2: "<i2", 4: "<i4"}[tensor.itemsize]
            rows += [f"{name} {kind} {tensor.shape}\n".encode(), tensor.tobytes()]
        dictionary = hashlib.blake2b(self.dictionary, digest_size=16).digest()
        self.id = digest("pltz bundle", *rows, self.fingerprint, dictionary)
        if self.id.hex() != about["id"]:
            raise Damaged("a bundle that differs from its identity")
        special, bytes_of, letters = dict[int, str](), dict[int, bytes](), byte_letters()
        for piece, number in json.loads(self.tokenizer)["model"]["vocab"].items():
            if number < 32:
                special[number] = piece[2:-2]
            else:
                bytes_of[number] = bytes(letters[letter] for letter in piece)
        super().__init__(special, bytes_of)
        self._library = Tokenizer.from_str(self.tokenizer)

    def bpe(self, data: bytes) -> list[int]:
        """Return the tokens of bytes (models/FORMAT.md, "BPE")."""
        tokens = list[int]()
        for block in blocks(data):
            text = block.decode("utf8", "surrogateescape")
            for run in re.findall("[\udc80-\udcff]|[^\udc80-\udcff]+", text):
                wrong = "\udc80" <= run[0] <= "\udcff"
                one = self.byte_ids(run.encode("utf8", "surrogateescape")) if wrong else self._library.encode(run).ids
                tokens += one
        return tokens

    @cached_property
    def model(self) -> Model:
        """Return the model."""
        return Model(self.shape, self.tensors)


class Memory:
    """Keys and values of inputs that later ones see, with their places."""

    def __init__(self, model: Model, room: int) -> None:
        shape = (model.layers, room, model.key_heads, model.head)
        self._keys, self._values = np.zeros(shape, np.float32), np.zeros(shape)
        self._places = np.zeros(room, np.int64)
        self.count = self._new = 0

    def add(self, places: Array) -> None:
        """Make room for inputs at these places."""
        self._places[self.count : self.count + len(places)] = places
        self._new, self.count = self.count, self.count + len(places)

    def see(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Note the new inputs' keys and values of a layer, and return those of all."""
        self._keys[layer, self._new : self.count], self._values[layer, self._new : self.count] = keys, values
        return self._keys[layer, : self.count], self._values[layer, : self.count]

    def keep(self, first: int, least: int) -> None:
        """Forget the first inputs, and those at places below the least."""
        kept = np.flatnonzero((np.arange(self.count) >= first) & (self._places[: self.count] >= least))
        self.count = len(kept)
        for array in (self._keys, self._values):
            array[:, : self.count] = array[:, kept]
        self._places[: self.count] = self._places[kept]


class RangeDecoder:
    """The range coder of a frame: whole numbers alone, and zeros behind the last byte."""

    def __init__(self, data: bytes) -> None:
        self._data, self._words = data, 0
        self._range = (1 << 64) - 1
        self._point = self._word() << 32 | self._word()  # less `lower`

    def _word(self) -> int:
        self._words += 1
        return int.from_bytes(self._data[4 * self._words - 4 : 4 * self._words].ljust(4, b"\0"), "big")

    def symbol(self, cumulative: Array) -> int:
        """Return the next symbol. ``cumulative``: (n + 1,), from 0 to 2^24."""
        scale = self._range >> 24
        place = self._point // scale
        if place >= 1 << 24:
            raise Damaged("a frame that points nowhere")
        found = int(np.searchsorted(cumulative, place, "right")) - 1
        low, high = int(cumulative[found]), int(cumulative[found + 1])
        self._point -= scale * low
        self._range = scale * (high - low)
        while self._range < 1 << 32:
            self._range <<= 32
            self._point = self._point << 32 | self._word()
        return found

    def end(self) -> None:
        """Refuse a frame with fewer bytes than its words need: it claims more tokens than it has."""
        if len(self._data) < 4 * (self._words - 2) - 1:
            raise Damaged("a frame that ends before its tokens")


Layout = tuple[int, int]  # lanes, steps


def layout_of(number: int, tokens: int) -> Layout:
    """Return the layout of a number for so many tokens."""
    if not number:
        return (max(1, -(-tokens // 512)), 512) if tokens <= 4096 else (8, 256)
    return (max(1, min(4, -(-tokens // 48)), min(16, -(-tokens // 96))), 128) if tokens <= 2048 else (32, 128)


def blocks_of(layout: Layout, tokens: int) -> list[tuple[int, int]]:
    """Return lanes and tokens of each block of a sequence."""
    lanes, full = layout[0], layout[0] * layout[1]
    rest = tokens % full
    return [(lanes, full)] * (tokens // full) + ([(min(lanes, rest), rest)] if rest else [])


def tokens_of(model: Model, data: bytes, tokens: int, layout: Layout, context: Sequence[int] = ()) -> list[int]:
    """Return the tokens of a frame. ``context``: tokens before it, of which the last M count."""
    if tokens == 0:
        if data:
            raise Damaged("a frame of no tokens that has bytes")
        return []
    cut = blocks_of(layout, tokens)
    known = list(context)[-model.memory :]
    largest = max(lanes * -(-size // lanes) for lanes, size in cut)
    memory, start = Memory(model, max(len(known), model.memory + 64) + largest), len(known)
    for place, token in enumerate([LANE_MARK, *known][:start]):
        model.run([token], [place], memory)
    out, decoder, last = [], RangeDecoder(data), known[-1] if known else LANE_MARK
    first = 0  # inputs in the memory that are older than the block before
    for lanes, size in cut:
        memory.keep(first, start - model.memory)
        first = memory.count
        steps = -(-size // lanes)
        full = size - lanes * (steps - 1)  # lanes of so many tokens
        starts = [lane * steps - max(0, lane - full) for lane in range(lanes)]
        rows: list[list[int]] = [[] for _ in range(lanes)]
        feed = [last] + [LANE_MARK] * (lanes - 1)
        for step in range(steps):
            x = model.run(feed, [start + begin + step for begin in starts], memory)
            active = lanes if step < steps - 1 else full
            classes = [decoder.symbol(model.class_frequencies(x[lane])) for lane in range(active)]
            for lane, of in enumerate(classes):
                rows[lane].append(of * CLASS + decoder.symbol(model.member_frequencies(x[lane], of)))
                feed[lane] = rows[lane][-1]
        decoder.end()
        out += [token for row in rows for token in row]
        last, start = out[-1], start + size
    return out


def u32(values: Sequence[int]) -> bytes:
    """Return integers as four bytes each."""
    return struct.pack(f"<{len(values)}I", *values)
