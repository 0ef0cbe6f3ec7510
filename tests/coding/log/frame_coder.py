"""A log coder that codes and decodes in one call, for tests and golden files."""

from collections.abc import Sequence

from pltz.coding.log.above import Above
from pltz.coding.log.log_coder import LogCoder


class FrameCoder(LogCoder):
    """Codes contents to frames, and frames to contents."""

    def encode(
        self, batch: Sequence[tuple[bytes, Above | None]], *, by_model: bool = True, fast: bool = False
    ) -> list[bytes]:
        """Return the frame of each content, coded after the part above it."""
        return self.encode_begun(batch, [self.begin(*row, by_model) for row in batch], fast=fast)

    def decode(self, batch: Sequence[tuple[bytes, int, Above | None]]) -> list[bytes]:
        """Return the content of each frame, of so many bytes, decoded after the part above it."""
        return [decoded.content() for decoded in self.decode_begun(batch)]
