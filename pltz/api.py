"""The functions behind the names of `pltz`: compress, decompress, open.

Each takes what a user has at hand (values, paths, bytes) and leaves the work to `pltz.coding.codec`. Loading a bundle,
a target or a tokenizer takes longer than coding a session with it. A caller with many calls makes a `Codec` once:

    codec = pltz.Codec.load()
    for path in paths:
        data = pltz.compress(path, bundle=codec)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from typing import Unpack

    from pltz.coding.codec import Codec
    from pltz.coding.decode_limits import LimitKeywords
    from pltz.coding.partners import Partners, Path_
    from pltz.coding.session_file import SessionFile
    from pltz.datasets.given import SessionsLike
    from pltz.models.bundle.bridge import Bridge
    from pltz.models.session.session import Session
    from pltz.models.target.target import Target
    from pltz.options import CompressKeywords, DecompressKeywords
    from pltz.plt_codec.container.file import Reader


def compress(sessions: SessionsLike, **options: Unpack[CompressKeywords]) -> bytes:
    """Freeze sessions into the bytes of a .pltz file. Every session is decoded back and compared first.

    Args:
        sessions: a path to session files (JSONL, JSON, text, ids; .zst too), the bytes of such a file, one session, or
            any iterable of sessions. A session is a `Session`, a chat as a dict or a list of messages, a text as str or
            bytes, or token ids as a sequence of ints.
        bundle: decoder bundle by name or folder, or loaded, or a `Codec`; None: the one that ships with pltz.
        target: keep the token ids that this model would see instead of the chat, for a thaw into that model alone.
        tokenizer: tokenizer.json (path or bytes) that sessions of ids belong to, where it is not the bundle's.
        device, threads: where the engine runs ("cpu", "cuda"), and on how many cores.
        format: of a path or of bytes: "auto", "agent-log", "jsonl", "text" or "ids".
        exact: keep the bytes of a path or of bytes, not only values of JSON. `pltz decompress` writes the very file.
        dropped: let the file say that signatures of thinking were left out of its sessions.
        layout: "fast": a GPU decodes sessions over 2048 tokens sooner, and they take a few per cent more bytes.
        verify: False leaves the decoding and comparing out.
        keep_opaque: keep sessions with images or audio, as plain bytes, instead of refusing them.
        model_logs: let the model code the text of logs; else PPMd does, at once, for some per cent more bytes.
        independent: code each session alone, not after an earlier one of the file that it has much in common with.
        progress: called with a number of tokens, whenever so many more are done.

    Raises:
        UsageError: the call makes no sense.
        ContentError: a session cannot be coded.
        ModelError: the bundle or target cannot be used.

    >>> import pltz
    >>> data = pltz.compress([{"messages": [{"role": "user", "content": "Hello"}]}])
    >>> pltz.decompress(data)[0].value
    {'messages': [{'role': 'user', 'content': 'Hello'}]}
    """
    from pltz.datasets.conversation import seen_by
    from pltz.datasets.given import as_sessions
    from pltz.options import CompressOptions

    chosen = CompressOptions(**options)
    codec = chosen.codec()
    model, partner = _freezing_for(chosen, codec)
    found = as_sessions(sessions, chosen.format, chosen.exact)
    if model is not None:
        found = (seen_by(model, session) for session in found)
    return codec.compress(found, **partner, exact=chosen.exact, dropped=chosen.dropped, **chosen.coding)


def decompress(
    data: Path_ | bytes | Reader,
    *,
    indices: Iterable[int] | None = None,
    max_tokens: int | Literal["auto"] | None = "auto",
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    **options: Unpack[DecompressKeywords],
) -> list[Session]:
    """Return the sessions of a .pltz file, as they were frozen.

    Args:
        data: path or bytes of the file, or a `Reader` of it.
        indices: session numbers; None is all.
        bundle, device, threads: as in `compress`; bundle None is the one the file names.
        target, tokenizer: whose ids the file holds, where it is not the bundle's tokenizer (one of them).
        max_tokens, max_bytes, max_seconds: limits for a file that you do not trust (`coding.decode_limits`). None lifts
            one. By default a file may ask for 16,384 tokens of the model and 32 more per byte.

    Raises:
        LimitError: the sessions ask for more than the limits.
        FormatError: not a sound .pltz file.
        MismatchError: not for this bundle or tokenizer.
        UsageError: no such file or session.

    >>> import pltz
    >>> pltz.decompress(pltz.compress(["one", "two"]), indices=[1])[0].value
    b'two'
    """
    limits: LimitKeywords = {"max_tokens": max_tokens, "max_bytes": max_bytes, "max_seconds": max_seconds}
    with open(data, **limits, **options) as file:
        return file.read(indices)


def open(
    path: Path_ | bytes | Reader,
    *,
    max_tokens: int | Literal["auto"] | None = "auto",
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    **options: Unpack[DecompressKeywords],
) -> SessionFile:
    """Open a .pltz file to read single sessions; the arguments are those of `decompress`.

    The bundle is loaded when the first session is decoded: ``len`` and ``info`` do without.

    Raises:
        FormatError: not a .pltz file; UsageError: no such file.

    >>> import pltz
    >>> with pltz.open(pltz.compress(["one", "two"])) as file:
    ...     len(file), file[1].value, file.info(1).content.kind
    (2, b'two', 'text')
    """
    from pltz.coding.decode_limits import DecodeLimits
    from pltz.coding.partners import Partners
    from pltz.coding.session_file import SessionFile
    from pltz.plt_codec.container.file import Reader

    partners, limits = Partners(**options), DecodeLimits(max_tokens, max_bytes, max_seconds)
    if isinstance(path, Reader):
        return SessionFile(path, partners, owned=False, limits=limits)
    reader = Reader(path) if isinstance(path, bytes) else Reader.open(path)
    return SessionFile(reader, partners, owned=True, limits=limits)


class _Partner(TypedDict, total=False):
    bridge: Bridge | None
    target_fingerprint: bytes


def _freezing_for(partners: Partners, codec: Codec) -> tuple[Target | None, _Partner]:
    """Return the target, and the arguments of a codec that name it or the tokenizer."""
    from pltz.coding.partners import as_target, bridge_between

    if partners.target is None:
        return None, {"bridge": partners.bridge(codec)}
    model = as_target(partners.target)
    bridge = bridge_between(model.tokenizer_json, codec)
    return model, {"bridge": bridge, "target_fingerprint": model.fingerprint}
