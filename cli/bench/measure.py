"""Measure a codec on sessions: bytes of one file, by session; nothing counts that did not come back equal.

All sessions go into one .pltz file, as they would in use. What the file holds beside the frames (header, index, footer)
is shared out evenly, so the parts add up to the size of the file.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pltz.cli.ui.progress import Progress
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    from pltz.models.session.codec import Codec, Coded
    from pltz.models.session.session import Session
    from pltz.plt_codec.container.file import Reader


@dataclass(frozen=True)
class Cost:
    """What one session costs."""

    tokens: int
    ideal_bits: float  # the model's own code length, and the copies
    coded_bytes: int  # the model's bytes and the copies, whether they were the shortest or not
    frame_bytes: int  # the frame in the file
    file_bytes: float  # the frame and its share of everything else
    by_model: bool  # False: the fallback was shorter


@dataclass(frozen=True)
class Run:
    """One compression and decompression of a list of sessions."""

    data: bytes
    costs: list[Cost]
    encode_s: float
    decode_s: float
    encode_busy_s: float  # of the processor, all threads
    decode_busy_s: float

    @property
    def tokens(self) -> int:
        """Tokens of all sessions, which the model encoded to see what they cost."""
        return sum(cost.tokens for cost in self.costs)

    @property
    def decoded_tokens(self) -> int:
        """Tokens the model decoded: those of sessions where the fallback was not shorter."""
        return sum(cost.tokens for cost in self.costs if cost.by_model)


def run(
    codec: "Codec",
    sessions: "Sequence[Session]",
    *,
    lanes: int | None = None,
    steps: int | None = None,
    shown: bool = False,
) -> Run:
    """Freeze the sessions, decode them back, compare, and say what each cost; ``shown``: progress on stderr.

    Raises:
        ModelError: a session came back changed.
    """
    from pltz.models.session.codec import Codec
    from pltz.plt_codec.container.file import Reader

    coded: list[Coded] = []
    measured = Codec(codec.bundle, codec.coder, coded.append)
    start = _clocks()
    with Progress("encode", unit="tokens", shown=shown) as bar:
        data = measured.compress(sessions, lanes=lanes, steps=steps, verify=False, progress=bar.add)
    middle = _clocks()
    with Progress("decode", unit="tokens", total=sum(one.tokens for one in coded), shown=shown) as bar:
        back = measured.decompress(data, progress=bar.add)
    end = _clocks()
    for number, (before, after) in enumerate(zip(sessions, back, strict=True)):
        if changed := before.difference(after):
            raise ModelError(f"session {number} came back changed ({changed}): no figure of this run holds")
    encode, decode = (
        [b - a for a, b in zip(*ends, strict=True)] for ends in ((start, middle), (middle, end))
    )
    return Run(data, costs(Reader(data), coded), encode[0], decode[0], encode[1], decode[1])


def _clocks() -> tuple[float, float]:
    """Seconds on the wall and of the processor."""
    return time.perf_counter(), time.process_time()


def costs(reader: "Reader", coded: "Sequence[Coded]") -> list[Cost]:
    """What each session of a file costs; ``coded`` is what the model made of them, in the same order.

    The bits of copies are no choice of the model: they count as they are in its code length.
    """
    share = reader.overhead / max(len(reader), 1)
    found = []
    for i, one in enumerate(coded):
        info = reader.info(i)
        taken = len(one.copies)
        ideal, size = one.encoded.ideal_bits + 8 * taken, len(one.encoded.data) + taken
        found.append(Cost(one.tokens, ideal, size, info.size, info.size + share, info.kind.by_model))
    return found
