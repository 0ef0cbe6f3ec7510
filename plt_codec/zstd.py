"""Fallback bytes: Zstandard with the bundle's dictionary, without every byte that the count already implies.

This codes content that the model would code worse (long self-repeating logs) or cannot code at all (opaque
parts), and the columns of copies. Spec: FORMAT.md, "Fallback bytes".

The byte count is known from outside. The frame header (magic, descriptor, window) is a function of it and is
left out. "Stored" needs no flag, since a packed form is only used when it is shorter.

A dictionary is trained for chats. On other content its statistics mislead the compressor (hexadecimal digits:
+6 %). So content is also packed as if there were no dictionary, and the shorter form is used. A reader with
the dictionary decodes it to the same bytes as long as the blocks do not lean on what the dictionary loads.
They hardly can, and `compress` tries it.

A mean session is a few hundred bytes, so six bytes of header would matter. The window is as large as the
content (128 MiB at most), so a repeat is found however far back it lies and the dictionary stays in reach.

    >>> coder = Fallback()
    >>> packed = coder.compress(b"the same words, " * 100)
    >>> len(packed) < 40, coder.decompress(packed, 1600) == b"the same words, " * 100
    (True, True)
    >>> coder.compress(b"\\x00\\xff")
    b'\\x00\\xff'
"""

from __future__ import annotations

from functools import lru_cache

import zstandard

from pltz.plt_codec.errors import CorruptError

LEVEL = 22  # smallest output, but its search memory grows with the window
LEVEL_LARGE = 19  # for content over LARGE bytes, with long-distance matching
LARGE = 1 << 24  # bytes
MIN_WINDOW_LOG = 10
MAX_WINDOW_LOG = 27
MAX_BLOCK = 1 << 17  # bytes that a block can hold (RFC 8878, 3.1.1.2.4)
PIECE = 1 << 20  # bytes decompressed at a time
FAST_LEVEL = 3  # tells in a small part of the time of LEVEL what it can come to
MARGIN = 2  # times that LEVEL is at best shorter than FAST_LEVEL with long-distance matching
LDM_LOG = 17  # of the window above which FAST_LEVEL looks for long repeats too
CACHED_WINDOW_LOG = 20  # compressors for larger windows need much memory and are not kept
DIGESTED = 8  # dictionaries that are kept ready for a window, 32 MB each of a dictionary of 1 MiB


def window_log(count: int) -> int:
    """Return the base-2 logarithm of the window for ``count`` bytes of content.

    >>> window_log(0), window_log(1024), window_log(1025), window_log(1 << 29)
    (10, 10, 11, 27)
    """
    return min(MAX_WINDOW_LOG, max(MIN_WINDOW_LOG, (count - 1).bit_length()))


def _parameters(log: int, dictionary_bytes: int) -> zstandard.ZstdCompressionParameters:
    large = log > LARGE.bit_length() - 1
    return zstandard.ZstdCompressionParameters.from_level(
        LEVEL_LARGE if large else LEVEL,
        source_size=1 << log,
        dict_size=dictionary_bytes,
        window_log=log,
        enable_ldm=large,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )


@lru_cache(maxsize=DIGESTED)
def _digested(dictionary: bytes, log: int) -> zstandard.ZstdCompressionDict:
    """Return a dictionary that is ready for a window: 0.2 s for 1 MiB, which each new coder paid at its first call."""
    ready = zstandard.ZstdCompressionDict(dictionary)
    ready.precompute_compress(compression_params=_parameters(log, len(dictionary)))
    return ready


class Fallback:
    """A compressor and decompressor of byte strings whose length is stored elsewhere.

    Args:
        dictionary: trained or raw Zstandard dictionary; empty for none. Both sides need the same.

    Not safe for two threads at once: it keeps the library's contexts between calls, so short content is fast.
    """

    def __init__(self, dictionary: bytes = b"") -> None:
        self._plain = Fallback() if dictionary else None
        self._content = dictionary
        self._dictionary = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}
        self._fast: dict[int, zstandard.ZstdCompressor] = {}
        self._decompressors: dict[int, zstandard.ZstdDecompressor] = {}

    def compress(self, data: bytes) -> bytes:
        """Return the shorter of ``data`` itself and its packed form."""
        packed = self._pack(data)
        if self._plain is not None:
            plain = self._plain.compress(data)
            if len(plain) < len(packed) and self._gives(plain, data):
                return plain
        return packed

    def fast_size(self, data: bytes) -> int:
        """Return the bytes of data at a level that takes a small part of the time of `compress`, stored or packed."""
        log = window_log(len(data))
        if log not in self._fast:
            parameters = zstandard.ZstdCompressionParameters.from_level(
                FAST_LEVEL,
                window_log=log,
                enable_ldm=log > LDM_LOG,
                format=zstandard.FORMAT_ZSTD1_MAGICLESS,
                write_content_size=False,
                write_dict_id=False,
            )
            self._fast[log] = zstandard.ZstdCompressor(dict_data=self._dictionary, compression_params=parameters)
        return min(len(data), len(self._fast[log].compress(data)) - len(_frame_header(log)))

    def _pack(self, data: bytes) -> bytes:
        log = window_log(len(data))
        packed = self._compressor(log).compress(data)
        if packed[:2] != _frame_header(log) or len(packed) - 2 >= len(data):
            return data
        return packed[2:]

    def _gives(self, packed: bytes, data: bytes) -> bool:
        """Return whether a reader with this dictionary gets the data from bytes packed without it."""
        try:
            return self.decompress(packed, len(data)) == data
        except CorruptError:
            return False

    def decompress(self, packed: bytes, count: int) -> bytes:
        """Undo `compress`.

        Args:
            packed: the bytes that `compress` returned.
            count: bytes before compression; no more than this is ever produced.

        Raises:
            CorruptError: the bytes are not a packed form of exactly ``count`` bytes.
        """
        if len(packed) == count:
            return packed
        if len(packed) > count:
            raise CorruptError(f"expected at most {count} fallback bytes, found {len(packed)}: the file is damaged")
        log = window_log(count)
        _check_blocks(packed, count, log)
        return self._inflate(_frame_header(log) + packed, count, log)

    def _inflate(self, frame: bytes, count: int, log: int) -> bytes:
        pieces: list[bytes] = []
        left = count
        try:
            with self._decompressor(log).stream_reader(frame) as stream:
                while left and (piece := stream.read(min(left, PIECE))):
                    pieces.append(piece)
                    left -= len(piece)
                excess = stream.read(1)
        except zstandard.ZstdError as exc:
            raise CorruptError(f"fallback bytes do not decompress ({exc}): the file is damaged") from exc
        if left or excess:
            found = "more" if excess else str(count - left)
            raise CorruptError(f"expected fallback content of {count} bytes, found {found}: the file is damaged")
        return b"".join(pieces)

    def _compressor(self, log: int) -> zstandard.ZstdCompressor:
        """Return the compressor for a window.

        Its settings depend on the window alone, so output does not depend on earlier calls.
        """
        if log in self._compressors:
            return self._compressors[log]
        dictionary = self._dictionary
        if dictionary is not None and log <= CACHED_WINDOW_LOG:
            dictionary = _digested(self._content, log)
        compressor = zstandard.ZstdCompressor(
            dict_data=dictionary, compression_params=_parameters(log, len(self._content))
        )
        if log <= CACHED_WINDOW_LOG:
            self._compressors[log] = compressor
        return compressor

    def _decompressor(self, log: int) -> zstandard.ZstdDecompressor:
        if log not in self._decompressors:
            self._decompressors[log] = zstandard.ZstdDecompressor(
                dict_data=self._dictionary, max_window_size=1 << log, format=zstandard.FORMAT_ZSTD1_MAGICLESS
            )
        return self._decompressors[log]


def may_reach(fast: int, size: int) -> bool:
    """Return whether `Fallback.compress` may come to ``size`` bytes of data that take ``fast`` bytes at a fast level.

    Trying the slow one on content that the model codes far shorter took a tenth of the time of encoding.

    >>> may_reach(71, 13), may_reach(100, 50)
    (False, True)
    """
    return fast <= MARGIN * size


def _frame_header(log: int) -> bytes:
    """Return the frame header descriptor and the window descriptor (RFC 8878, 3.1.1.1)."""
    return bytes([0, (log - MIN_WINDOW_LOG) << 3])


def _check_blocks(packed: bytes, count: int, log: int) -> None:
    """Walk the block headers (RFC 8878, 3.1.1.2): they must end exactly and have room for ``count`` bytes.

    So a tiny hostile frame cannot declare a huge count, and bytes after the last block do not pass.
    """
    block_limit = min(1 << log, MAX_BLOCK)
    position = room = 0
    last = False
    while not last:
        header = int.from_bytes(packed[position : position + 3], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if position + 3 > len(packed) or kind == 3 or size > block_limit:
            raise CorruptError("fallback bytes hold a broken block header: the file is damaged")
        position += 3 + (1 if kind == 1 else size)
        room += block_limit if kind == 2 else size
    if position != len(packed):
        raise CorruptError(f"expected fallback blocks of {len(packed)} bytes, found {position}: the file is damaged")
    if room < count:
        raise CorruptError(f"expected {count} bytes, but the fallback blocks hold at most {room}: the file is damaged")
