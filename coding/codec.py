"""Codec: sessions to the bytes of a .pltz file and back, every frame decoded before it is acknowledged.

    session --transcript, bridge--> bundle tokens ------------------> model--> frame
                                                  --repeats cut out-> model--> frame    the shortest goes into the file
            --plain bytes, zstd----------------------------------------------> frame
    log     --plain bytes, log coder-----------------------------------------> frame

The shortest of the three frames goes into the file. The log of an agent (`log_look.is_log`) has one, which says by
which of its methods it was coded (log/log_coder.py). The bytes of a frame are the bitstring of a segment codec
(codecs/), as an archive has them. `Codec` joins these codecs, over one bundle and one engine, with the container;
decoder.py is the way back.

Sessions are taken in batches, since the engine is fast only when many sequences run side by side. With
``verify`` each model frame is decoded again and the whole session compared before the bytes are handed out.

Three methods are needed. The model sees some thousand tokens back, so long repeats in a log of hundreds of
kilobytes are taken out as copies (plt_codec/repeats.py). Data that the model does not
know at all may be shorter under zstd. Opaque content (images) has no tokens at all.

    codec = Codec.load()
    data = codec.compress([Session("text", b"hello")])
    assert codec.decompress(data) == [Session("text", b"hello")]
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO, Unpack

from pltz.coding.decoder import SessionDecoder
from pltz.coding.host_work import HostWork
from pltz.coding.neighbours import Neighbours
from pltz.coding.options import CodingKeywords, CodingOptions
from pltz.coding.parts import Doubling
from pltz.coding.pipeline import Executors, Pipeline
from pltz.coding.workers import Workers, helpers
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Writer
from pltz.plt_codec.container.header import Header

if TYPE_CHECKING:
    from pltz.coding.parts import Coder, Parts
    from pltz.models.bundle.bridge import Bridge
    from pltz.models.bundle.bundle import Bundle


class FileKeywords(CodingKeywords, total=False):
    """The keywords of `Codec.compress_into`, which explains them."""

    bridge: Bridge | None
    target_fingerprint: bytes | None
    exact: bool
    dropped: bool


class Codec(SessionDecoder):
    """A codec of sessions to .pltz bytes and back, with one bundle.

    One thread uses it at a time.

    Args:
        bundle: tokenizer, dictionary and identity.
        coder: the token coder over this bundle's engine.
        workers: processes beside the model, for inputs of `START_BYTES` or more. Files are the same for any number.

    ``threaded``: False for no threads.
    """

    def __init__(self, bundle: Parts, coder: Coder, *, workers: int = 0) -> None:
        self._work = HostWork(bundle.tokenizer, bundle.zstd_dict)
        self.workers = Workers(self._work, max(0, workers))
        super().__init__(bundle, coder, self.workers)
        self._threads = Executors.threads(self, self.workers) if isinstance(coder, Doubling) else None
        self.threaded = True

    @classmethod
    def load(
        cls,
        bundle: str | os.PathLike[str] | Bundle | None = None,
        *,
        device: str = "cpu",
        threads: int | None = None,
        workers: int | None = None,
    ) -> Codec:
        """Return the codec of a bundle, by name, folder or loaded; None is the bundle that ships with pltz.

        Args:
            bundle: its name or folder, or the bundle.
            device: of the model.
            threads: of the engine on a CPU; None: all cores.
            workers: processes beside the model; None: one per core but one, or per thread, at most `workers.MOST`.

        Raises:
            UsageError: no such bundle or device.
            ModelError: the bundle cannot be used.
        """
        from pltz.models.bundle.bundle import Bundle

        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        return cls(loaded, loaded.coder(device, threads), workers=helpers(threads) if workers is None else workers)

    # ---- sessions -> bytes

    def compress(self, sessions: Iterable[Session], **how: Unpack[FileKeywords]) -> bytes:
        """Return a .pltz file of these sessions. The arguments and errors are those of `compress_into`."""
        sink = io.BytesIO()
        self.compress_into(sink, sessions, **how)
        return sink.getvalue()

    def compress_into(
        self,
        sink: BinaryIO,
        sessions: Iterable[Session],
        *,
        bridge: Bridge | None = None,
        target_fingerprint: bytes | None = None,
        exact: bool = False,
        dropped: bool = False,
        **options: Unpack[CodingKeywords],
    ) -> int:
        """Write a .pltz file of these sessions, in batches, and return how many there were.

        The file is whole when this returns. Any earlier stop leaves a file that every reader refuses.

        Args:
            sink: binary file; written front to back.
            bridge: to the tokenizer that sessions of ids belong to; None: they are bundle tokens.
            target_fingerprint: 16 bytes of the target the sessions are frozen for; None: any.
            exact: the sessions in a row are the bytes of an input (`Session.to_input_bytes`); the file says so.
            dropped: signatures were left out of the sessions; the file says so.
            options: see `CodingOptions`.

        Raises:
            UsageError: the layout is unknown.
            ContentError: a session cannot be coded; OpaqueContentError for an image, audio or file part.
            TokenizerMismatch: ids without a bridge that are not ids of the bundle.
            ModelError: a frame did not decode to its session.
        """
        chosen, sessions = CodingOptions(**options), iter(sessions)
        first = [*itertools.islice(sessions, 2)]  # one alone has no neighbour
        earlier = None if chosen.independent or len(first) < 2 else Neighbours()
        bridge = None if bridge is None or bridge.identity else bridge
        header = Header(
            bundle_id=self.bundle.id,
            tokenizer_fingerprint=None if bridge is None else bridge.fingerprint,
            target_fingerprint=target_fingerprint,
            exact=exact,
            dropped=dropped,
        )
        writer = Writer(sink, header)
        threads = self._threads if self.threaded else None
        pipeline = Pipeline(self, self._work, self.workers, threads, chosen, bridge, earlier)
        for frame in pipeline.frames(itertools.chain(first, sessions)):
            writer.add(frame)
        return writer.finish()
