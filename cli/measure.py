"""Measure a codec on sessions: bytes of one file, by session; nothing counts that did not come back equal.

All sessions go into one .pltz file, as they would in use. What the file holds beside the frames (header, index, footer)
is shared out evenly, so the parts add up to the size of the file.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pltz.cli.progress import Progress
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    from pltz.models.codec import Codec, Coder
    from pltz.models.codec import Progress as Report
    from pltz.models.session import Session
    from pltz.models.tokenizer import Ids
    from pltz.plt_codec.container import Reader
    from pltz.plt_codec.item import Encoded, FrameItem


class Recorder:
    """A token coder that keeps what the one beneath said of each sequence: tokens, ideal bits, bytes."""

    def __init__(self, coder: "Coder") -> None:
        self.coder = coder
        self.tokens: list[int] = []
        self.ideal_bits: list[float] = []
        self.coded_bytes: list[int] = []

    def encode(
        self,
        sequences: "Sequence[Ids]",
        *,
        lanes: int | None = None,
        steps: int | None = None,
        progress: "Report | None" = None,
    ) -> "Sequence[Encoded]":
        """Encode, and keep the figures."""
        encoded = self.coder.encode(sequences, lanes=lanes, steps=steps, progress=progress)
        self.tokens += [len(sequence) for sequence in sequences]
        self.ideal_bits += [one.ideal_bits for one in encoded]
        self.coded_bytes += [len(one.data) for one in encoded]
        return encoded

    def decode(self, items: "Sequence[FrameItem]", *, progress: "Report | None" = None) -> "Sequence[Ids]":
        """Decode; nothing to keep."""
        return self.coder.decode(items, progress=progress)


@dataclass(frozen=True)
class Cost:
    """What one session costs."""

    tokens: int
    ideal_bits: float  # the model's own code length
    coded_bytes: int  # the model's frame, whether it was the shorter one or not
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
    from pltz.models.codec import Codec
    from pltz.plt_codec.container import Reader

    recorder = Recorder(codec.coder)
    measured = Codec(codec.bundle, recorder)
    start = time.perf_counter()
    with Progress("encode", unit="tokens", shown=shown) as bar:
        data = measured.compress(sessions, lanes=lanes, steps=steps, verify=False, progress=bar.add)
    middle = time.perf_counter()
    with Progress("decode", unit="tokens", total=sum(recorder.tokens), shown=shown) as bar:
        back = measured.decompress(data, progress=bar.add)
    end = time.perf_counter()
    for number, (before, after) in enumerate(zip(sessions, back, strict=True)):
        if changed := before.difference(after):
            raise ModelError(f"session {number} came back changed ({changed}): no figure of this run holds")
    return Run(data, costs(Reader(data), recorder), middle - start, end - middle)


def costs(reader: "Reader", recorder: Recorder) -> list[Cost]:
    """What each session of a file costs; the recorder saw its sessions in the same order."""
    share = reader.overhead / max(len(reader), 1)
    found = []
    for i in range(len(reader)):
        info = reader.info(i)
        figures = (recorder.tokens[i], recorder.ideal_bits[i], recorder.coded_bytes[i])
        found.append(Cost(*figures, info.size, info.size + share, info.kind.by_model))
    return found
