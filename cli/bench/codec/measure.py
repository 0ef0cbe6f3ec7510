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
    from pltz.coding.codec import Codec, ModelResult
    from pltz.models.session.session import Session
    from pltz.plt_codec.container.file import Reader


@dataclass(frozen=True)
class SessionCost:
    """The cost of one session."""

    tokens: int
    ideal_bits: float  # the model's own code length plus the copies
    coded_bytes: int  # the model's bytes plus the copies, even where the fallback was shorter
    frame_bytes: int  # the frame in the file
    file_bytes: float  # the frame and its share of the other bytes
    by_model: bool  # False: the fallback was shorter, or it is a log
    log: bool = False  # coded as a log: its code length is not known, and counts as the bytes of its frame


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
        """Return the tokens of all sessions. The model encoded all of them to find their cost."""
        return sum(cost.tokens for cost in self.costs)

    @property
    def decoded_tokens(self) -> int:
        """Return the tokens that the model decoded: those of logs, and of sessions where the fallback was longer."""
        return sum(cost.tokens for cost in self.costs if cost.by_model or cost.log)


def run(
    codec: "Codec",
    sessions: "Sequence[Session]",
    *,
    lanes: int | None = None,
    steps: int | None = None,
    shown: bool = False,
) -> CodecRun:
    """Freeze the sessions, each alone, decode them back, compare, and return what each cost.

    ``shown``: progress on stderr.

    Raises:
        ModelError: a session came back changed.
    """
    from pltz.coding.codec import Codec
    from pltz.plt_codec.container.file import Reader

    coded: list[ModelResult] = []
    measured = Codec(codec.bundle, codec.coder, coded.append)
    start = _clocks()
    with Progress("encode", unit="tokens", shown=shown) as bar:
        data = measured.compress(sessions, lanes=lanes, steps=steps, verify=False, independent=True, progress=bar.add)
    middle = _clocks()
    with Progress("decode", unit="tokens", total=sum(one.tokens for one in coded), shown=shown) as bar:
        back = measured.decompress(data, progress=bar.add)
    end = _clocks()
    for number, (before, after) in enumerate(zip(sessions, back, strict=True)):
        if changed := before.difference(after):
            raise ModelError(f"session {number} came back changed ({changed}): no figure of this run is valid")
    encode, decode = (
        [b - a for a, b in zip(*ends, strict=True)] for ends in ((start, middle), (middle, end))
    )
    return CodecRun(data, costs(Reader(data), coded), encode[0], decode[0], encode[1], decode[1])


def _clocks() -> tuple[float, float]:
    """Return wall and processor seconds."""
    return time.perf_counter(), time.process_time()


def costs(reader: "Reader", coded: "Sequence[ModelResult]") -> list[SessionCost]:
    """Return what each session of a file costs. ``coded`` is the model's result for each, in the same order.

    The model does not choose the bits of copies: they count unchanged in its code length.
    """
    share = reader.overhead / max(len(reader), 1)
    found = []
    for i, one in enumerate(coded):
        info = reader.info(i)
        taken = len(one.copies)
        ideal, size = one.encoded.ideal_bits + 8 * taken, len(one.encoded.data) + taken
        found.append(SessionCost(one.tokens, ideal, size, info.size, info.size + share, info.kind.by_model, info.log))
    return found
