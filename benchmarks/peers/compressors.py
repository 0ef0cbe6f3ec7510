"""General-purpose compressors as peers of pltz, beside zstd (cli/bench/codec/compressors.py), by the same rules.

Settings were chosen on a validation split of chats (1,040 sessions, 983 kB, mean 945 B), never on a test split.

    peer       settings                                             bytes there
    zstd       level 19, the blocks alone (22: the same)                423,823
    zstd+dict  the same with the bundle's dictionary                          -
    brotli     quality 11, window 2^24, generic mode (text: the same)   348,685
    xz         LZMA1 raw, 9 extreme, lc 1 lp 0 pb 0 (lc 3 pb 2: +3 %)   430,146
    ppmd       variant H, order 64 (order 6: +0.6 %, I: +0.1 %)         370,773
"""

import contextlib
import importlib
import lzma
import mmap
from collections.abc import Callable, Mapping, Sequence

import click

from pltz.cli.bench.codec.compressors import Peer, zstd_peer
from pltz.cli.ui.options import Decorator
from pltz.plt_codec import _ppmd, ppmd
from pltz.plt_codec.errors import UsageError

NAMES = ("zstd", "zstd+dict", "brotli", "xz", "ppmd")
PPMD_ORDER = 64
XZ_TAIL = 12  # bytes at the end of a raw stream that may turn out not to be needed


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


def option(names: tuple[str, ...]) -> Decorator:
    """Return the option ``--peers``, by default all of them. The command takes it as ``names``."""
    return click.option(
        "--peers",
        "names",
        default=",".join(names),
        show_default=True,
        metavar="NAME,...",
        help="Compressors to compare with.",
    )
