"""General-purpose compressors as peers of pltz: each session alone, at the settings best for short chats.

Settings were chosen on a validation split of chats (1,040 sessions, 983 kB, mean 945 B), never on a test split.
Every doubt is decided for the peer. No magic number, checksum, size field or container counts, lengths are known for
free, and bytes that a decoder does not need are cut off. Of the renderings of a session below (messages as control byte
and text, or JSON) each peer gets the one with the smaller total. A .pltz file pays for all of that.

    peer       settings                                             bytes there
    zstd       level 19, the blocks alone (22: the same)                423,823
    zstd+dict  the same with the bundle's dictionary                          -
    brotli     quality 11, window 2^24, generic mode (text: the same)   348,685
    xz         LZMA1 raw, 9 extreme, lc 1 lp 0 pb 0 (lc 3 pb 2: +3 %)   430,146
    ppmd       variant H, order 64 (order 6: +0.6 %, I: +0.1 %)         370,773
"""

import contextlib
import functools
import importlib
import json
import lzma
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zstandard

from pltz.plt_codec import _ppmd, ppmd
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.models.session.session import Session

NAMES = ("zstd", "zstd+dict", "brotli", "xz", "ppmd")
PPMD_ORDER = 64
XZ_TAIL = 12  # bytes at the end of a raw stream that may turn out not to be needed

Encode = Callable[[bytes], bytes]
Decode = Callable[[bytes, int], bytes]  # (data, length of the original) -> original


@dataclass(frozen=True)
class Peer:
    """A compressor: its name, its settings, and a pair of functions."""

    name: str
    settings: str
    encode: Encode
    decode: Decode

    def size(self, data: bytes) -> int:
        """Return the bytes that ``data`` takes, after it was decoded back and compared.

        Data that the peer's library does not decode correctly counts as stored plain.
        """
        coded = self.encode(data)
        return self.counted(coded, data, self.back(coded, len(data)))

    def back(self, coded: bytes, length: int) -> bytes | None:
        """Return the original, or None where the library does not give it back."""
        try:
            return self.decode(coded, length)
        except ValueError:
            return None

    @staticmethod
    def counted(coded: bytes, data: bytes, back: bytes | None) -> int:
        """Return the bytes that count for ``data``, by the rule of `Peer.size`."""
        return len(coded) if back == data else len(data)


def lean(messages: Sequence[dict[str, Any]]) -> bytes:
    """Return the leanest rendering: one control byte per message for role and boundary, then the content.

    Falls back on JSON (which starts with ``[``) where that would not be invertible.

    >>> lean([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
    b'\\x02hi\\x03hello'
    """
    from pltz.models.session import session

    return session.lean({"messages": messages}) or compact(messages)


def compact(messages: Sequence[dict[str, Any]]) -> bytes:
    """Return the messages as compact JSON."""
    text = json.dumps(messages, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


RENDERINGS: dict[str, Callable[[Sequence[dict[str, Any]]], bytes]] = {"lean": lean, "json": compact}


def rendered(session: "Session", name: str) -> bytes:
    """Return a session in one of the renderings, or its plain bytes if it is not messages alone."""
    value = session.value
    if session.kind == "chat" and isinstance(value, dict) and list(value) == ["messages"]:
        messages = value["messages"]
        if isinstance(messages, list) and all(isinstance(m, dict) and "role" in m for m in messages):
            return RENDERINGS[name](messages)
    return session.to_bytes()


def build(
    names: Sequence[str], dictionary: bytes, others: Mapping[str, Callable[[], Peer | None]] | None = None
) -> tuple[list[Peer], list[str]]:
    """Return the chosen peers, and the names of those whose library is not installed.

    Args:
        names: from ``NAMES``, or of ``others``.
        dictionary: the bundle's zstd dictionary. Empty leaves ``zstd+dict`` out.
        others: what makes further peers, by name; it raises ImportError where a library is not installed.

    Raises:
        UsageError: a name is unknown.
    """
    peers: list[Peer] = []
    missing: list[str] = []
    others = others or {}
    for name in names:
        if name not in (*NAMES, *others):
            raise UsageError(f"unknown peer {name!r}: choose from {','.join((*NAMES, *others))}")
        peer = _build(name, dictionary, others)
        if peer is None:
            missing.append(name)
        else:
            peers.append(peer)
    return peers, missing


def _build(name: str, dictionary: bytes, others: Mapping[str, Callable[[], Peer | None]]) -> Peer | None:
    if name == "zstd":
        return zstd_peer(b"")
    if name == "zstd+dict":
        return zstd_peer(dictionary) if dictionary else None
    if name in ("xz", "ppmd"):
        return xz_peer() if name == "xz" else ppmd_peer()
    try:
        if name in others:
            return others[name]()
        return brotli_peer()
    except ImportError:
        return None


def zstd_peer(dictionary: bytes) -> Peer:
    """Return Zstandard at level 19, the blocks alone without any header, optionally with a dictionary."""

    def parameters(length: int) -> zstandard.ZstdCompressionParameters:
        return zstandard.ZstdCompressionParameters.from_level(
            19,
            source_size=length,
            dict_size=len(dictionary),
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=False,
            write_checksum=False,
            write_dict_id=False,
        )

    shared = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    if shared is not None:  # digested once: 15 times faster, with the same bytes
        shared.precompute_compress(compression_params=parameters(2000))
    decoder = zstandard.ZstdDecompressor(dict_data=shared, format=zstandard.FORMAT_ZSTD1_MAGICLESS)

    def frame(data: bytes) -> bytes:
        coder = zstandard.ZstdCompressor(compression_params=parameters(len(data)), dict_data=shared)
        return coder.compress(data)

    @functools.cache
    def header(length: int) -> bytes:  # descriptor and window: the same for all data of this length
        return frame(bytes(length))[:2]

    def encode(data: bytes) -> bytes:
        return frame(data).removeprefix(header(len(data))) if data else b""

    def decode(data: bytes, length: int) -> bytes:
        return decoder.decompress(header(length) + data, max_output_size=length) if length else b""

    name = "zstd+dict" if dictionary else "zstd"
    settings = "level 19, blocks only" + (f", dictionary of {len(dictionary)} bytes" if dictionary else "")
    return Peer(name, settings, encode, decode)


def brotli_peer() -> Peer:
    """Return Brotli at quality 11 with its own dictionary, in the smaller of generic and text mode."""
    brotli = importlib.import_module("brotli")

    def encode(data: bytes) -> bytes:
        modes = (brotli.MODE_GENERIC, brotli.MODE_TEXT)
        tries: list[bytes] = [brotli.compress(data, mode=mode, quality=11, lgwin=24) for mode in modes]
        return min(tries, key=len)

    def decode(data: bytes, length: int) -> bytes:
        back: bytes = brotli.decompress(data)
        return back

    return Peer("brotli", "quality 11, lgwin 24, better of generic and text", encode, decode)


def xz_peer() -> Peer:
    """Return LZMA as a raw stream: xz -9e without container, header, end mark or padding."""

    def decode(data: bytes, length: int) -> bytes:
        coder = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=xz_filters(length))
        return coder.decompress(data, max_length=length) if length else b""

    def encode(data: bytes) -> bytes:
        whole = lzma.compress(data, lzma.FORMAT_RAW, filters=xz_filters(len(data)))
        for cut in range(min(XZ_TAIL, len(whole)), 0, -1):
            with contextlib.suppress(lzma.LZMAError):
                if decode(whole[:-cut], len(data)) == data:
                    return whole[:-cut]
        return whole

    return Peer("xz", "LZMA1 raw, preset 9e, lc 1 lp 0 pb 0", encode, decode)


def xz_filters(length: int) -> list[dict[str, int]]:
    """Return the filter chain for ``length`` bytes. A window no larger than the data keeps it fast."""
    window = max(4096, 1 << max(length - 1, 1).bit_length())  # bytes
    preset = 9 | lzma.PRESET_EXTREME
    return [{"id": lzma.FILTER_LZMA1, "preset": preset, "dict_size": window, "lc": 1, "lp": 0, "pb": 0}]


def ppmd_peer() -> Peer:
    """Return PPMd variant H, without primer and past."""
    memory = mmap.mmap(-1, ppmd.MEMORY)
    model = _ppmd.trained(memory, PPMD_ORDER, b"")

    def encode(data: bytes) -> bytes:
        [stream] = _ppmd.encode(memory, model, [(b"", data)])
        return data if stream is None else stream

    def decode(data: bytes, length: int) -> bytes:
        return data if len(data) == length else _ppmd.decode(memory, model, [(b"", data, length)])[0]

    return Peer("ppmd", f"variant H, order {PPMD_ORDER}", encode, decode)
