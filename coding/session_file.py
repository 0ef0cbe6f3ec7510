"""A .pltz file as a sequence of sessions, with the codec and the bridge for reading it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pltz.coding.decoder import DEFAULT
from pltz.models.session.session import Session

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pltz.coding.codec import Codec
    from pltz.coding.decode_limits import DecodeLimits
    from pltz.coding.partners import Partners
    from pltz.models.bundle.bridge import Bridge
    from pltz.plt_codec.container.file import Info, Reader


class SessionFile(Sequence[Session]):
    """An open .pltz file: a sequence of sessions, each decoded when it is asked for. Made by `pltz.open`.

    One thread uses it at a time.

    ``reader``: the container beneath.
    """

    def __init__(self, reader: Reader, partners: Partners, *, owned: bool, limits: DecodeLimits = DEFAULT) -> None:
        self.reader = reader
        self._partners = partners
        self._owned = owned
        self.limits = limits
        self._codec: Codec | None = None
        self._bridge: Bridge | None = None

    @property
    def codec(self) -> Codec:
        """Return the codec of the bundle that was named, else of the file's own; it is loaded on first use."""
        if self._codec is None:
            self._codec = self._partners.codec(self.reader.header.bundle_id)
        return self._codec

    @property
    def bridge(self) -> Bridge | None:
        """Return the bridge to the tokenizer that was named, or None."""
        if self._bridge is None:
            self._bridge = self._partners.bridge(self.codec)
        return self._bridge

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Any) -> Any:
        """Return session ``index``, or a list of them for a slice.

        Raises:
            IndexError: the index is beyond the end, as in every sequence.
        """
        numbers = range(len(self))[index]
        return self.read(numbers) if isinstance(numbers, range) else self.read([numbers])[0]

    def __iter__(self) -> Iterator[Session]:
        return self.codec.decompress_each(self.reader, bridge=self.bridge, limits=self.limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, indices: Iterable[int] | None = None) -> list[Session]:
        """Decode many sessions side by side, which is faster than one by one; None is all.

        Raises:
            PltzError: as `SessionDecoder.decompress`.
        """
        return self.codec.decompress(self.reader, indices, bridge=self.bridge, limits=self.limits)

    def info(self, index: int) -> Info:
        """Return kind, count and size of session ``index``, without decoding it."""
        return self.reader.info(index)

    def close(self) -> None:
        """Close the file."""
        if self._owned:
            self.reader.close()
