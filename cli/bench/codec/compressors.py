"""Zstandard as a peer of pltz: each session alone, at the settings best for short chats.

Every doubt is decided for the peer. No magic number, checksum, size field or container counts, lengths are known for
free, and bytes that a decoder does not need are cut off. Of the renderings of a session below (messages as control byte
and text, or JSON) it gets the one with the smaller total. A .pltz file pays for all of that.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zstandard

if TYPE_CHECKING:
    from pltz.models.session.session import Session

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
