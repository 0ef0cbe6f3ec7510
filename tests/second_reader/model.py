"""Bundle, integer model and frames, as models/FORMAT.md and plt_codec/NUMERICS.md describe them.

Products of 8-bit numbers are sums of floats here wherever each partial sum is a whole number that a float holds: they
are exact, and BLAS is fast. Everything else is int64.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from safetensors.numpy import load
from tokenizers import Tokenizer

from tests.second_reader.fields import Copy, joined, refuse

Array = np.ndarray[Any, np.dtype[Any]]
Layout = tuple[int, int]  # lanes, steps
CLASS, LANE_MARK = 128, 0
BIG = (1 << 22) - 1


def digest(person: str, *parts: bytes, size: int = 16, key: bytes = b"") -> bytes:
    """Return the BLAKE2b of parts, one after the other."""
    return hashlib.blake2b(b"".join(parts), digest_size=size, key=key, person=person.encode()).digest()


class Vocabulary:
    """The names of special tokens, and the bytes of all others."""

    def __init__(self, special: dict[int, str], bytes_of: dict[int, bytes]) -> None:
        self.special, self._bytes_of = special, bytes_of

    def spell(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of tokens that are no specials."""
        refuse(not {*ids} <= self._bytes_of.keys(), "a special in a text")
        return b"".join(self._bytes_of[i] for i in ids)

    def segments(self, ids: Sequence[int]) -> list[tuple[str, bytes]]:
        """Return tokens as specials, by name, and the bytes behind each."""
        starts = [place for place, token in enumerate(ids) if token in self.special]
        refuse(len(ids) and starts[:1] != [0], "tokens that begin with text")
        ends = [*starts[1:], len(ids)]
        return [(self.special[ids[a]], self.spell(ids[a + 1 : b])) for a, b in zip(starts, ends, strict=False)]


class Bundle(Vocabulary):
    """A bundle's folder: weights, the bytes and names of its tokens, its dictionary, its identity."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / "bundle.json").read_text("utf8"))
        refuse(about["format"] != 1 or about["contract"] not in (1, 2), "a bundle of another format")
        self.contract, self.shape, tensors = about["contract"], about["shape"], dict[str, Array]()
        for name, entry in about["files"].items():
            data = (folder / name).read_bytes()
            refuse(digest("", data).hex() != entry["blake2b"], f"{name} differs from its digest")
            if name.endswith(".zst"):
                data = zstandard.ZstdDecompressor().decompress(data)
            if name.startswith("weights-"):
                tensors |= load(data)
            elif name.startswith("tokenizer"):
                self.tokenizer = data.decode()
            else:
                self.dictionary = data
        self.fingerprint = digest("pltz tokenizer", self.tokenizer.encode())
        rows = [json.dumps([self.contract, self.shape], sort_keys=True, separators=(",", ":")).encode()]
        for name, tensor in sorted(tensors.items()):
            rows += [f"{name} {tensor.dtype.str} {tensor.shape}\n".encode(), tensor.tobytes()]
        self.id = digest("pltz bundle", *rows, self.fingerprint, digest("", self.dictionary))
        refuse(self.id.hex() != about["id"], "a bundle that differs from its identity")
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in plain]
        letters = {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}
        vocab = json.loads(self.tokenizer)["model"]["vocab"]
        special = {number: piece[2:-2] for piece, number in vocab.items() if number < 32}
        super().__init__(special, {n: bytes(letters[one] for one in piece) for piece, n in vocab.items() if n >= 32})
        self._library, self.model = Tokenizer.from_str(self.tokenizer), Model(self.shape, tensors)
        self._alone = {chr(0xDC00 + byte): [vocab[letter]] for letter, byte in letters.items() if byte > 127}

    def bpe(self, data: bytes) -> list[int]:
        """Return the tokens of bytes (models/FORMAT.md, "BPE")."""
        texts = (block.decode("utf8", "surrogateescape") for block in blocks(data))
        runs = (run for text in texts for run in re.findall("[\udc80-\udcff]|[^\udc80-\udcff]+", text))
        return [token for run in runs for token in self._alone.get(run) or self._library.encode(run).ids]

    @cached_property
    def primer(self) -> bytes:
        """Return what PPMd has seen of the dictionary before tokens."""
        roles = {self.bpe(bytes([byte]))[0]: byte for byte in range(1, 7)}
        ids = self.bpe(self.dictionary[-(1 << 18) :])
        return b"".join(roles.get(token, token).to_bytes(2) for token in ids)


def blocks(data: bytes) -> Iterator[bytes]:
    """Yield the blocks of bytes that go through BPE one by one."""
    while len(data) > 65536:
        cut = data.rfind(b"\n", 32768, 65536) + 1 or max(data.rfind(b" ", 32768, 65536), 0)
        cut = cut or next(at for at in (65536, 65535, 65534, 65533) if data[at] & 0xC0 != 0x80 or at == 65533)
        yield data[:cut]
        data = data[cut:]
    yield data


def rs(a: Any, n: int) -> Any:
    """Shift to the right and round half up."""
    return (a + (1 << n - 1)) >> n


def clamp(a: Any, n: int) -> Any:
    """Hold numbers to -n .. n."""
    return np.clip(a, -n, n)


class Model:
    """The integer model. What inputs may see is a memory: by layer, keys and values (2, inputs, key heads, D)."""

    def __init__(self, shape: dict[str, Any], tensors: dict[str, Array]) -> None:
        self.layers, self.memory, self.gated = shape["layers"], shape["memory"], shape.get("gated", False)
        self.heads, self.key_heads, self.head = shape["heads"], shape["kv_heads"], shape["head_dim"]
        self.norm_gain, self.head_gain = shape["norm_gain"], shape["head_gain"]
        self.float = {
            name: np.ascontiguousarray(tensor.T, np.float32 if tensor.shape[1] <= 512 else np.float64)
            for name, tensor in tensors.items() if name.endswith(".w") and not name.startswith(("embed", "shift"))
        }  # 512 products of at most 255 * 127 stay below 2^24
        self.t = {name: tensor.astype(np.int64) for name, tensor in tensors.items() if name not in self.float}

    def _norm(self, x: Array, gain: int, name: str = "") -> Array:
        roots = [max(1, isqrt(total)) for total in (x * x).sum(-1).ravel().tolist()]
        t = np.array([(gain << 32) // root for root in roots], np.int64).reshape(x.shape[:-1])[..., None]
        found = rs(rs(x * t, 32) * self.t[name], 20) if name and self.gated else rs(x * t, 40)
        return np.asarray(clamp(found, 127))

    def _times(self, name: str, a: Array) -> Array:
        weights = self.float[name + ".w"]
        y = rs((a.astype(weights.dtype) @ weights).astype(np.int64) * self.t[name + ".m"], 24)
        return np.asarray(clamp(y, 1 << 30) if self.gated else y)

    def _turned(self, y: Array, places: Array) -> Array:
        angle = ((places[:, None] * self.t["table.phase"]) >> 10) & 1023
        cos, sin = self.t["table.cos"][angle][:, None], self.t["table.sin"][angle][:, None]
        a, b = np.split(y, 2, -1)
        return np.concatenate([rs(a * cos - b * sin, 14), rs(a * sin + b * cos, 14)], -1)

    def blank(self) -> list[Array]:
        """Return a memory of nothing."""
        return [np.zeros((2, 0, self.key_heads, self.head), np.float32)] * self.layers

    def run(self, ids: Sequence[int], places: Sequence[int], memory: list[Array]) -> Array:
        """Return residuals (n, d) of n inputs, which see the memory and each other, and add them to the memory."""
        at, n, turned = np.array(places, np.int64), len(ids), (self.heads + self.key_heads) * self.head
        rows = np.array(ids)
        x = clamp(rs(self.t["embed.w"][rows] * self.t["embed.m"][rows][:, None], 16), BIG)
        for layer in range(self.layers):
            name = f"layer.{layer}."
            y = self._times(name + "qkv", self._norm(x, self.norm_gain, name + "norm_in"))
            qk = self._turned(clamp(y[:, :turned], (1 << 15) - 1).reshape(n, -1, self.head), at)
            qk = clamp(rs(qk, 7), 127) if self.gated else self._norm(qk, self.head_gain)
            v = clamp(y[:, turned:], 127).reshape(n, -1, self.head)
            new = np.array([qk[:, self.heads :], v], np.float32)
            memory[layer] = np.concatenate([memory[layer], new], 1)
            o = self._attend(qk[:, : self.heads], memory[layer], self.t[name + "heat"])
            x = clamp(x + self._times(name + "out", o), BIG)
            a = self._norm(x, self.norm_gain, name + "norm_mid")
            up = self._times(name + "up", a)
            if self.gated:
                g = clamp(self._times(name + "gate", a), 511)
                h = clamp(rs(self.t["table.act"][g + 511] * clamp(up, 32767), 16), 127)
            else:
                h = rs(np.clip(up, 0, 255) ** 2, 8)
            x = clamp(x + self._times(name + "down", h), BIG)
        return np.asarray(x)

    def _attend(self, q: Array, seen: Array, heat: Array) -> Array:
        out = []
        for head in range(self.heads):
            keys, values = seen[:, :, head * self.key_heads // self.heads]
            s = (q[:, head].astype(np.float32) @ keys.T).astype(np.int64)
            e = np.minimum(((s.max(1, keepdims=True) - s) * heat[head]) >> 16, 1023)
            w = rs(self.t["table.exp"][e & 63], 5) >> (e >> 6)
            p = rs(w * ((1 << 40) // w.sum(1, keepdims=True)), 24)
            out.append(clamp(rs((p.astype(np.float32) @ values).astype(np.int64), 15), 127))
        return np.concatenate(out, 1)

    def class_frequencies(self, x: Array) -> Array:
        """Return cumulative frequencies (G + 1,) of the classes after a residual (d,)."""
        return self._cumulative(self._times("class", self._norm(x, self.norm_gain, "norm_out")) + self.t["class.b"])

    def member_frequencies(self, x: Array, of: int) -> Array:
        """Return cumulative frequencies (129,) of the members of a class."""
        z = clamp(x + rs(self.t["shift.w"][of] * self.t["shift.m"][of], 16), BIG)
        rows = slice(of * CLASS, of * CLASS + CLASS)
        y = self.t["embed.w"][rows] @ self._norm(z, self.norm_gain, "norm_out")
        logits = rs(y * self.t["member.m"][rows], 24)
        logits = clamp(logits, 1 << 30) if self.gated else logits
        return self._cumulative(logits + self.t["member.b"][rows])

    def _cumulative(self, logits: Array) -> Array:
        e, n = np.minimum(logits.max() - logits, 1983), len(logits)
        sums = np.append(0, np.cumsum(self.t["table.exp"][e & 63] >> (e >> 6)))
        cumulative = np.arange(n + 1) + ((sums * ((((1 << 24) - n) << 20) // int(sums[-1]))) >> 20)
        cumulative[n] = 1 << 24
        return np.asarray(cumulative)


class RangeDecoder:
    """The range coder of a frame: whole numbers alone, and zeros behind the last byte."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._range = data, 8, (1 << 64) - 1
        self._point = int.from_bytes(data[:8].ljust(8, b"\0"), "big")  # less `lower`

    def symbol(self, cumulative: Array) -> int:
        """Return the next symbol. ``cumulative``: (n + 1,), from 0 to 2^24."""
        scale = self._range >> 24
        place = self._point // scale
        refuse(place >= 1 << 24, "a frame that points nowhere")
        found = int(np.searchsorted(cumulative, place, "right")) - 1
        low, high = int(cumulative[found]), int(cumulative[found + 1])
        self._point -= scale * low
        self._range = scale * (high - low)
        while self._range < 1 << 32:
            word = self._data[self._at : self._at + 4].ljust(4, b"\0")
            self._range, self._point = self._range << 32, self._point << 32 | int.from_bytes(word, "big")
            self._at += 4
        return found

    def end(self) -> None:
        """Refuse a frame with fewer bytes than its words need: it claims more tokens than it has."""
        refuse(len(self._data) < self._at - 9, "a frame that ends before its tokens")


def layout_of(number: int, tokens: int) -> Layout:
    """Return the layout of a number for so many tokens."""
    if not number:
        return (max(1, -(-tokens // 512)), 512) if tokens <= 4096 else (8, 256)
    return (max(1, min(4, -(-tokens // 48)), min(16, -(-tokens // 96))), 128) if tokens <= 2048 else (32, 128)


def tokens_of(model: Model, data: bytes, tokens: int, layout: Layout, context: Sequence[int] = ()) -> list[int]:
    """Return the tokens of a frame. ``context``: tokens before it, of which the last M count."""
    refuse(tokens == 0 and data, "a frame of no tokens that has bytes")
    known = [LANE_MARK, *list(context)[-model.memory :]]
    memory, decoder, start, out = model.blank(), RangeDecoder(data), len(known) - 1, list[int]()
    for place, token in enumerate(known[:-1] if tokens else []):
        model.run([token], [place], memory)
    places = np.arange(start)  # of the inputs of the block before, which are the last in the memory
    while left := tokens - len(out):
        size = min(left, layout[0] * layout[1])
        lanes = min(layout[0], size)
        kept = np.flatnonzero(places >= start - model.memory) - len(places)
        memory, steps = [array[:, kept] for array in memory], -(-size // lanes)
        full = size - lanes * (steps - 1)  # lanes of so many tokens
        starts = [start + lane * steps - max(0, lane - full) for lane in range(lanes)]
        rows: list[list[int]] = [[] for _ in range(lanes)]
        feed = [(out or known)[-1]] + [LANE_MARK] * (lanes - 1)
        for step in range(steps):
            x = model.run(feed, [begin + step for begin in starts], memory)
            active = range(lanes if step < steps - 1 else full)
            classes = [decoder.symbol(model.class_frequencies(x[lane])) for lane in active]
            for lane, of in zip(active, classes, strict=True):
                feed[lane] = of * CLASS + decoder.symbol(model.member_frequencies(x[lane], of))
                rows[lane].append(feed[lane])
        decoder.end()
        places = np.add.outer(np.arange(steps), starts).ravel()
        out += [token for row in rows for token in row]
        start += size
    return out


def sequence_of(
    model: Model, data: bytes, tokens: int, layout: int, past: Sequence[int] = (), copies: Sequence[Copy] = ()
) -> list[int]:
    """Return the tokens of a frame with its copies put in. ``layout``: its number; ``past``: tokens before it."""
    literals = tokens - sum(length for _, length, _ in copies)
    return joined(copies, tokens_of(model, data, literals, layout_of(layout, literals), past), past)
