"""Measure a codec on sessions: the bytes of one file, per session. Only sessions that come back equal count.

All sessions go into one .pltz file, as they would in use. The bytes beside the frames (header, index, footer) are
divided evenly among the sessions, so the parts add up to the size of the file.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pltz.cli.ui.progress import Progress
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    from pltz.coding.codec import Codec
    from pltz.models.session.session import Session
    from pltz.plt_codec.container.file import Reader


@dataclass(frozen=True)
class SessionCost:
    """The cost of one session."""

    tokens: int  # those that the model coded, copies of a chat included
    frame_bytes: int  # the frame in the file
    file_bytes: float  # the frame and its share of the other bytes
    by_model: bool  # False: the fallback was shorter, or it is a log
    log: bool = False  # coded as a log


@dataclass(frozen=True)
class CodecRun:
    """One compression and decompression of a list of sessions."""

    data: bytes
    costs: list[SessionCost]
    encode_s: float
    decode_s: float
    encode_busy_s: float  # processor time of all threads
    decode_busy_s: float

    @property
    def tokens(self) -> int:
        """Return the tokens of all sessions."""
        return sum(cost.tokens for cost in self.costs)


def run(codec: "Codec", sessions: "Sequence[Session]", *, shown: bool = False) -> CodecRun:
    """Freeze the sessions, each alone, decode them back, compare, and return what each cost.

    ``shown``: progress on stderr.

    Raises:
        ModelError: a session came back changed.
    """
    from pltz.coding.codec import Codec
    from pltz.plt_codec.container.file import Reader

    measured = Codec(codec.bundle, codec.coder)
    start = _clocks()
    with Progress("encode", unit="tokens", shown=shown) as bar:
        data = measured.compress(sessions, verify=False, independent=True, progress=bar.add)
    middle = _clocks()
    with Progress("decode", unit="tokens", shown=shown) as bar:
        back = measured.decompress(data, progress=bar.add)
    end = _clocks()
    for number, (before, after) in enumerate(zip(sessions, back, strict=True)):
        if changed := before.difference(after):
            raise ModelError(f"session {number} came back changed ({changed}): no figure of this run is valid")
    encode, decode = ([b - a for a, b in zip(*ends, strict=True)] for ends in ((start, middle), (middle, end)))
    return CodecRun(data, costs(Reader(data)), encode[0], decode[0], encode[1], decode[1])


def _clocks() -> tuple[float, float]:
    """Return wall and processor seconds."""
    return time.perf_counter(), time.process_time()


def costs(reader: "Reader") -> list[SessionCost]:
    """Return what each session of a file costs."""
    from pltz.coding.log import log_coder

    share = reader.overhead / max(len(reader), 1)
    found = []
    for number, frame in enumerate(reader):
        size = reader.info(number).size
        tokens = frame.count if frame.by_model else 0
        if frame.log:
            tokens = log_coder.parse(frame.data).coded_tokens
        found.append(SessionCost(tokens, size, size + share, frame.by_model, frame.log))
    return found
