"""The functions behind the names of `pltz`: compress, decompress, open, thaw, and compress and decompress for many.

Each takes what a user has at hand (values, paths, bytes) and leaves the work to `pltz.models.codec` and
`pltz.archive.thaw`. A bundle, a target or a tokenizer may be named or given loaded; loading one takes longer than coding
a session with it, so who calls often makes a `Codec` once:

    codec = pltz.Codec.load()
    for path in paths:
        data = pltz.compress(path, bundle=codec)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pltz.plt_codec.errors import PltzError, UsageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import numpy as np

    from pltz.archive.hot.store import HotStore
    from pltz.archive.sessions import Item, SessionArchive
    from pltz.archive.thaw import Thawed
    from pltz.models.bridge import Bridge
    from pltz.models.bundle import Bundle
    from pltz.models.codec import Codec, OnError
    from pltz.models.session import Session
    from pltz.models.target import Target
    from pltz.plt_codec.container import Info, Reader

Path_ = str | os.PathLike[str]
DEFAULT_TARGET = "mini-llama"  # the target that ships with pltz
READ_AHEAD = 256  # sessions decoded side by side by iteration


def compress(
    sessions: object,
    *,
    bundle: Path_ | Bundle | Codec | None = None,
    target: Path_ | Target | None = None,
    tokenizer: Path_ | bytes | None = None,
    device: str = "cpu",
    threads: int | None = None,
    format: str = "auto",
    **options: Any,
) -> bytes:
    """Freeze sessions into the bytes of a .pltz file. Every session is decoded back and compared first.

    Args:
        sessions: a path to session files (JSONL, JSON, text, ids; .zst too), the bytes of such a file, one session, or
            any iterable of sessions. A session is a `Session`, a chat as a dict or a list of messages, a text as str or
            bytes, or token ids as a sequence of ints.
        bundle: decoder bundle by name or folder, or loaded, or a `Codec`; None: the one that ships with pltz.
        target: keep the token ids that this model would see instead of the chat, for a thaw into that model alone.
        tokenizer: tokenizer.json (path or bytes) that sessions of ids belong to, where it is not the bundle's.
        device, threads: where the engine runs, and on how many cores.
        format: of a path or of bytes, as `pltz.datasets.load` takes it.
        options: lanes, steps, verify, keep_opaque, progress, as `Codec.compress` takes them.

    Raises:
        UsageError: the call makes no sense; ContentError: a session cannot be coded; ModelError: the bundle or
            target cannot be used.

    >>> import pltz
    >>> data = pltz.compress([{"messages": [{"role": "user", "content": "Hello"}]}])
    >>> pltz.decompress(data)[0].value
    {'messages': [{'role': 'user', 'content': 'Hello'}]}
    """
    from pltz.models.target import as_seen_by

    codec = _codec(bundle, device, threads)
    found: Iterable[Session] = as_sessions(sessions, format)
    model, partner = _freezing_for(target, tokenizer, codec)
    if model is not None:
        found = (as_seen_by(model, session) for session in found)
    return codec.compress(found, **partner, **options)


def compress_many(
    sessions: object,
    *,
    bundle: Path_ | Bundle | Codec | None = None,
    target: Path_ | Target | None = None,
    tokenizer: Path_ | bytes | None = None,
    device: str = "cpu",
    threads: int | None = None,
    format: str = "auto",
    errors: OnError = "raise",
    **options: Any,
) -> Iterator[bytes | Any]:
    """Freeze each session into a .pltz file of its own: the files, in the order of the sessions.

    One by one they would leave the engine mostly idle: here some hundred are coded side by side, long ones first, and
    where one ends the next goes in. Memory stays bounded however many there are (a batch of about a million tokens and
    the largest session), so ``sessions`` may be an endless generator. `compress` makes one file of all.

    Args:
        errors: "raise" the first error, which names its session by number, or "return" it, a PltzError, in the place of
            the file.
        the others: as in `compress`.

    Raises: as `compress`.

    >>> import pltz
    >>> one, bad, two = pltz.compress_many(["one", 2.0, "two"], errors="return")
    >>> bad
    UsageError('session 1: expected a flat sequence of integer ids, found 0-d float64')
    >>> [file[0].value for file in pltz.decompress_many([one, two])]
    [b'one', b'two']
    """
    codec = _codec(bundle, device, threads)
    model, partner = _freezing_for(target, tokenizer, codec)
    found = (_attempt(item, model) for item in _items(sessions, format))
    return codec.compress_many(found, **partner, errors=errors, **options)


def decompress_many(
    files: Iterable[Path_ | bytes],
    *,
    bundle: Path_ | Bundle | Codec | None = None,
    target: Path_ | Target | None = None,
    tokenizer: Path_ | bytes | None = None,
    device: str = "cpu",
    threads: int | None = None,
    errors: OnError = "raise",
) -> Iterator[list[Session] | Any]:
    """The sessions of many .pltz files: a list for each file, in their order, decoded side by side.

    Memory stays bounded however many there are, by a batch of about a million tokens and the largest file; to read
    single sessions of a large file, `open` it.

    Args:
        files: paths or bytes, from any iterable.
        bundle: of all the files; None: the one that ships with pltz.
        errors: "raise" the first error, which names its file by number, or "return" it, a PltzError, in the place
            of the sessions.
        target, tokenizer, device, threads: as in `decompress`.

    Raises: as `decompress`.
    """
    codec = _codec(bundle, device, threads)
    if target is not None and tokenizer is not None:
        raise UsageError("a target brings its own tokenizer: leave tokenizer out")
    of = (
        _target_tokenizer(target)
        if target is not None
        else None
        if tokenizer is None
        else _tokenizer_json(tokenizer)
    )
    return codec.decompress_many(
        map(_file_bytes, files), bridge=None if of is None else _bridge(of, codec), errors=errors
    )


def decompress(
    data: Path_ | bytes | Reader,
    *,
    indices: Iterable[int] | None = None,
    bundle: Path_ | Bundle | Codec | None = None,
    target: Path_ | Target | None = None,
    tokenizer: Path_ | bytes | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> list[Session]:
    """The sessions of a .pltz file, as they were frozen.

    Args:
        data: path or bytes of the file, or a `Reader` of it.
        indices: session numbers; None is all.
        bundle, device, threads: as in `compress`; bundle None is the one the file names.
        target, tokenizer: whose ids the file holds, where it is not the bundle's tokenizer (one of them).

    Raises:
        FormatError: not a sound .pltz file; MismatchError: not for this bundle or tokenizer; UsageError: no
            such file or session.

    >>> import pltz
    >>> pltz.decompress(pltz.compress(["one", "two"]), indices=[1])[0].value
    b'two'
    """
    with open(
        data, bundle=bundle, target=target, tokenizer=tokenizer, device=device, threads=threads
    ) as file:
        return file.read(indices)


def open(
    path: Path_ | bytes | Reader,
    *,
    bundle: Path_ | Bundle | Codec | None = None,
    target: Path_ | Target | None = None,
    tokenizer: Path_ | bytes | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> SessionFile:
    """Open a .pltz file to read single sessions; the arguments are those of `decompress`.

    The bundle is loaded when the first session is decoded: ``len`` and ``info`` do without.

    >>> import pltz
    >>> with pltz.open(pltz.compress(["one", "two"])) as file:
    ...     len(file), file[1].value, file.info(1).kind.session
    (2, b'two', 'text')
    """
    from pltz.plt_codec.container import Reader

    given = isinstance(path, Reader)
    reader = (
        path if isinstance(path, Reader) else Reader(path) if isinstance(path, bytes) else Reader.open(path)
    )
    return SessionFile(reader, _Partners(bundle, target, tokenizer, device, threads), owned=not given)


def thaw(
    data: Path_ | bytes | Reader,
    target: Path_ | Target | None = None,
    index: int = 0,
    *,
    bundle: Path_ | Bundle | Codec | None = None,
    any_target: bool = False,
    chunk: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> Thawed:
    """Make a session hot again: decode its tokens and prefill the target with them, once.

    Args:
        data: path or bytes of a .pltz file, or a `Reader` of it.
        target: the model, by folder or name, or loaded; None: the one that ships with pltz.
        index: session number.
        any_target: take a target that the file was not frozen for.
        chunk: prefill at most so many tokens at a time.
        bundle, device, threads: as in `compress`; the device is the decoder's, not the target's.

    Returns:
        Thawed: cache, token_ids, logits of the last position, timings in milliseconds.

    Raises:
        TargetMismatch: frozen for other weights; ContentError: the target cannot take these tokens; and what
            `decompress` raises.
    """
    from pltz.archive.thaw import check_target
    from pltz.archive.thaw import thaw as prefill

    model = _target(target if target is not None else DEFAULT_TARGET)
    start = time.perf_counter()
    with open(data, bundle=bundle, target=model, device=device, threads=threads) as file:
        frozen_for = file.reader.header.target_fingerprint
        if frozen_for is not None:  # before any decoding: a fingerprint of other weights makes all of it vain
            check_target(frozen_for, model.fingerprint, any_target=any_target)
        file.codec  # noqa: B018  (loaded here, so that its time is not decoding time)
        read = time.perf_counter()
        ids = target_ids(file, index, model)
    decoded = time.perf_counter()
    timings = {"read": 1e3 * (read - start), "decode": 1e3 * (decoded - read)}
    return prefill(ids, model, frozen_for=frozen_for, any_target=any_target, chunk=chunk, timings=timings)


def open_archive(
    path: Path_,
    *,
    create: bool = False,
    bundle: Path_ | Bundle | None = None,
    tokenizers: Iterable[Path_ | bytes] = (),
    device: str = "cpu",
    threads: int | None = None,
) -> SessionArchive:
    """Open an archive of sessions, or make one: put sessions, get them back, list, verify, forget, copy.

    Args:
        path: its directory.
        create: make it if there is none; False: it must be there.
        bundle: what codes new sessions; None: the one that ships with pltz.
        tokenizers: tokenizer.json (path or bytes) of targets whose own ids are put or read, where they are not the bundle's.
        device, threads: as in `compress`.

    Raises:
        UsageError: there is no archive; FormatError: it is damaged or newer; ModelError: the bundle cannot be used.

    >>> import pltz.api, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cold = pltz.api.open_archive(folder, create=True)
    ...     [stored] = cold.put([pltz.api.item("greeting", "hello")])
    ...     cold.get("greeting").value
    b'hello'
    """
    from pltz.archive.archive import Archive
    from pltz.archive.sessions import SessionArchive
    from pltz.archive.settings import NAME
    from pltz.models.bundle import Bundle

    if create and not (Path(path) / NAME).exists():
        Archive.create(path, [])
    loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
    known = [_tokenizer_json(tokenizer) for tokenizer in tokenizers]
    return SessionArchive.open(path, [loaded], tokenizers=known, device=device, threads=threads)


def item(name: str, session: object, **options: Any) -> Item:
    """A session to put into an archive under a name; ``session`` as in `compress`, options as `Item` has them (tenant, labels, ...)."""
    from pltz.archive.sessions import Item

    return Item(name, as_session(session), **options)


def thaw_archived(
    cold: SessionArchive,
    name: str,
    target: Path_ | Target | None = None,
    tenant: str = "default",
    number: int | None = None,
    *,
    hot: HotStore | None = None,
    any_target: bool = False,
    chunk: int | None = None,
) -> Thawed:
    """Make a session of an archive hot again, as `thaw` does with one of a file.

    One session, nothing kept: to thaw many, and to keep what is shared in a `HotStore`, make a `pltz.archive.hot.Thawer` once.

    Args:
        hot: a store to look in first and to keep the KV in.

    Raises:
        NotFound: no such session or version; LostError: it is damaged; and what `thaw` raises.
    """
    from pltz.archive.hot.thawer import Thawer

    model = _target(target if target is not None else DEFAULT_TARGET)
    return Thawer(cold, model, hot, any_target=any_target, chunk=chunk).thaw(name, tenant, number)


def target_ids(file: SessionFile, index: int, model: Target) -> np.ndarray[Any, Any]:
    """The ids to prefill ``model`` with for session ``index``, (T,).

    Ids are themselves, and bundle tokens are the target's own where both have one tokenizer; else a chat goes through
    the target's template and a text through its tokenizer.
    """
    import numpy as np

    from pltz.models.target import as_seen_by

    kind = file.info(index).kind.session
    if kind == "ids" or _bridge(model.tokenizer_json, file.codec).identity:
        return file.codec.token_ids(file.reader, index, bridge=file.bridge if kind == "ids" else None)
    return np.asarray(as_seen_by(model, file[index]).value)


@dataclass(frozen=True)
class _Partners:
    """What a file is read with, as the user named it."""

    bundle: Path_ | Bundle | Codec | None
    target: Path_ | Target | None
    tokenizer: Path_ | bytes | None
    device: str
    threads: int | None


class SessionFile(Sequence["Session"]):
    """An open .pltz file: a sequence of sessions, each decoded when it is asked for. Made by `open`.

    ``reader``: the container beneath.
    """

    def __init__(self, reader: Reader, partners: _Partners, *, owned: bool) -> None:
        self.reader = reader
        self._partners = partners
        self._owned = owned
        self._codec: Codec | None = None
        self._bridge: Bridge | None = None

    @property
    def codec(self) -> Codec:
        """The codec of the bundle that was named, else of the one the file names; loaded on first use."""
        if self._codec is None:
            bundle = self._partners.bundle
            if bundle is None:
                from pltz.models.bundle import Bundle

                bundle = Bundle.find(self.reader.header.bundle_id)
            self._codec = _codec(bundle, self._partners.device, self._partners.threads)
        return self._codec

    @property
    def bridge(self) -> Bridge | None:
        """The bridge to the tokenizer that was named, None where none was."""
        if self._bridge is None:
            target, tokenizer = self._partners.target, self._partners.tokenizer
            if target is not None and tokenizer is not None:
                raise UsageError("a target brings its own tokenizer: leave tokenizer out")
            if target is not None:
                self._bridge = _bridge(_target_tokenizer(target), self.codec)
            elif tokenizer is not None:
                self._bridge = _bridge(_tokenizer_json(tokenizer), self.codec)
        return self._bridge

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Any) -> Any:
        """Session ``index``, or a list of them for a slice; IndexError beyond the end, as in every sequence."""
        numbers = range(len(self))[index]
        return self.read(numbers) if isinstance(numbers, range) else self.read([numbers])[0]

    def __iter__(self) -> Iterator[Session]:
        for start in range(0, len(self), READ_AHEAD):
            yield from self.read(range(start, min(len(self), start + READ_AHEAD)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, indices: Iterable[int] | None = None) -> list[Session]:
        """Many sessions, decoded side by side, which is faster than one by one; None is all."""
        return self.codec.decompress(self.reader, indices, bridge=self.bridge)

    def info(self, index: int) -> Info:
        """Kind, count and size of session ``index``, without decoding it."""
        return self.reader.info(index)

    def close(self) -> None:
        """Let go of the file."""
        if self._owned:
            self.reader.close()


def as_sessions(source: object, format: str = "auto") -> Iterable[Session]:
    """What a user calls sessions, as sessions; see `compress`.

    >>> list(as_sessions([[1, 2], "text", {"messages": []}]))
    [Session('ids', 2 ids), Session('text', 4 bytes), Session('chat', dict of 1)]
    """
    from pltz.datasets.loaders import load
    from pltz.models.session import Session

    if isinstance(source, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(source, "read"):
        return load(source, format)  # type: ignore[arg-type]  # load checks the name of the format itself
    if isinstance(source, Session | dict) or _is_messages(source):
        return [as_session(source)]
    if not isinstance(source, Iterable):
        raise UsageError(f"expected sessions, a path or bytes, found {type(source).__name__}")
    return (as_session(item) for item in source)


def as_session(item: object) -> Session:
    """One session: a `Session` as it is, a dict or a list of dicts is a chat, str or bytes a text, ints are ids.

    Raises:
        UsageError: it is none of them.

    >>> as_session("hello")
    Session('text', 5 bytes)
    """
    from pltz.models.session import Session

    if isinstance(item, Session):
        return item
    if isinstance(item, str):
        return Session("text", item.encode("utf-8", "surrogatepass"))
    if isinstance(item, bytes | bytearray | memoryview):
        return Session("text", item)
    if isinstance(item, dict) or (isinstance(item, list) and any(isinstance(part, dict) for part in item)):
        return Session("chat", item)
    return Session("ids", item)


def _items(source: object, format: str) -> Iterable[object]:
    """What `as_sessions` takes, each item still as the user gave it where that is possible."""
    from pltz.models.session import Session

    whole = isinstance(source, str | bytes | bytearray | memoryview | Session | dict)
    if whole or hasattr(source, "read") or isinstance(source, os.PathLike) or _is_messages(source):
        return as_sessions(source, format)
    if not isinstance(source, Iterable):
        raise UsageError(f"expected sessions, a path or bytes, found {type(source).__name__}")
    return source


def _attempt(item: object, model: Target | None) -> Session | PltzError:
    """One session as ``model`` sees it, if there is one; or why it cannot be."""
    from pltz.models.target import as_seen_by

    try:
        session = as_session(item)
        return session if model is None else as_seen_by(model, session)
    except PltzError as exc:
        return exc


def _file_bytes(file: Path_ | bytes) -> bytes | PltzError:
    if isinstance(file, bytes):
        return file
    try:
        return Path(file).read_bytes()
    except OSError as exc:
        return UsageError(f"cannot read {os.fspath(file)}: {exc.strerror or exc}")


def _freezing_for(
    target: Path_ | Target | None, tokenizer: Path_ | bytes | None, codec: Codec
) -> tuple[Target | None, dict[str, Any]]:
    """The target and what a codec is told of it, or of the tokenizer."""
    if target is None:
        return None, {"bridge": None if tokenizer is None else _bridge(_tokenizer_json(tokenizer), codec)}
    if tokenizer is not None:
        raise UsageError("a target brings its own tokenizer: leave tokenizer out")
    model = _target(target)
    return model, {
        "bridge": _bridge(model.tokenizer_json, codec),
        "target_fingerprint": model.fingerprint,
    }


def _is_messages(value: object) -> bool:
    """Whether a list is the messages of one chat rather than a list of sessions."""
    return isinstance(value, list) and bool(value) and all(_is_message(item) for item in value)


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and ("role" in item or "from" in item) and not ("messages" in item)


def _codec(bundle: Path_ | Bundle | Codec | None, device: str, threads: int | None) -> Codec:
    from pltz.models.codec import Codec

    return bundle if isinstance(bundle, Codec) else Codec.load(bundle, device=device, threads=threads)


def _target(target: Path_ | Target) -> Target:
    from pltz.models.target import Target

    return Target.load(target) if isinstance(target, str | os.PathLike) else target


def _target_tokenizer(target: Path_ | Target) -> bytes:
    """A target's tokenizer JSON, without loading its weights."""
    from pltz.models.checkpoint import resolve, tokenizer_json_of

    return (
        tokenizer_json_of(resolve(target)) if isinstance(target, str | os.PathLike) else target.tokenizer_json
    )


def _tokenizer_json(tokenizer: Path_ | bytes) -> bytes:
    if isinstance(tokenizer, bytes):
        return tokenizer
    try:
        return Path(tokenizer).read_bytes()
    except OSError as exc:
        raise UsageError(f"cannot read {os.fspath(tokenizer)}: {exc.strerror or exc}") from exc


def _bridge(tokenizer_json: bytes, codec: Codec) -> Bridge:
    from pltz.models.bridge import Bridge

    return Bridge(tokenizer_json, codec.bundle.tokenizer)
