"""S3 store: an archive in a bucket, through `obstore`. Spec: WRITING.md, "The store".

    s3://bucket/some/prefix  ->  some/prefix/packs/<32 hex>, some/prefix/index/..., some/prefix/collect/...,
                                 some/prefix/archive.json

A put is one PUT with ``If-None-Match: *``: the object appears whole or not at all, or another writer's is there. Such
stores list strongly consistently, and an answered PUT is durable, so there is nothing to sync. A register is one
object, replaced by a PUT with ``If-Match: <ETag>``. When a name is taken, reading the object tells a lost answer from
another writer: every name is a digest, or the bytes hold a random number of their writer.

Indexes are read very often. They are kept in a folder of this machine, each checked against its name when opened. That
folder may be deleted at any time. Of a large index only the pages are read that are wanted, each checked by its crc.
Records are read by range.

Credentials come from the environment as AWS tools expect them, or from ``options``. The variables are
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL. Roles of a machine or pod
serve too. Credentials appear in no message of ours.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pltz.archive.errors import StoreError
from pltz.archive.format import object_names
from pltz.archive.format.byte_source import File, Held, Reader
from pltz.archive.format.index_file import FileIndex
from pltz.archive.format.object_names import INDEXES, folder_of, last_part
from pltz.archive.storage.disk import OsFile
from pltz.archive.storage.seen import GENERATION, SeenGenerations, place_folder
from pltz.archive.storage.store import MOST_WHOLE, Content, Opened, Store
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME = "s3://"
MOST_KEPT = 1 << 24  # bytes of an index of which a copy is kept; of a larger one ranges are read,
FRONT = 1 << 20  # and these first bytes, which tell where its pages are, come with its size
NEAR = 1 << 20  # bytes between two ranges that come in one request
CONFLICTS = 10  # attempts at a name that others are writing
CUT = "list response body"  # in the error of a listing that ends early
ENDPOINT = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?(/\S*)?", re.ASCII)
STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w{1,64})</Code>|\(code: (\w{1,64})\)")  # the latter in answers to DeleteObjects

T = TypeVar("T")


@dataclass(frozen=True)
class BucketPlace:
    """The place of an archive and the way to speak to it.

    ``timeout``: seconds per request; ``retries``: attempts after a request that failed on the way.
    """

    bucket: str
    prefix: str = ""
    options: Mapping[str, str] = field(
        default_factory=dict, repr=False
    )  # by obstore's names: endpoint, region, access_key_id, ...
    timeout: float = 60.0
    retries: int = 5

    @classmethod
    def of(cls, url: str, options: Mapping[str, str] | None = None, **how: float) -> BucketPlace:
        """Return the place of a URL. Raises UsageError where it is not s3://bucket or s3://bucket/prefix.

        >>> BucketPlace.of("s3://cold/team-a/").prefix
        'team-a'
        """
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.hostname or parts.query or parts.fragment:
            raise UsageError("expected s3://bucket or s3://bucket/prefix")
        if "@" in parts.netloc:
            raise UsageError("an archive's URL holds no credentials: put them into the environment")
        return cls(parts.netloc, parts.path.strip("/"), dict(options or {}), **how)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """Return the URL, without credentials."""
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")


class RangedObject:
    """An object of ``size`` bytes of which each read is a request. Implements `byte_source.File`.

    ``get``: returns at most ``size`` bytes at ``offset``; ``front``: the first bytes, which are known.
    """

    def __init__(self, size: int, get: Reader, front: memoryview) -> None:
        self.size, self._get, self._front = size, get, front

    def read(self, offset: int, size: int) -> bytes | memoryview:
        known = offset + size <= len(self._front)
        return self._front[offset : offset + size] if known else self._get(offset, size)


class ObjectStore(Store):
    """A bucket, or a prefix in one.

    Args:
        place: a URL (``s3://bucket/prefix``) or a `BucketPlace`.
        cache: folder for copies of index files; None is ``pltz`` in the user's cache folder.
        sleep: waits so many seconds, where others are first.

    Raises UsageError for an invalid URL, StoreError where `obstore` is missing.
    """

    def __init__(
        self,
        place: str | BucketPlace,
        cache: str | os.PathLike[str] | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.place = BucketPlace.of(place) if isinstance(place, str) else place
        self._remote = _connect(self.place)
        self._cache = place_folder(self.place.url, _endpoint(self.place), cache=cache)
        self.seen = SeenGenerations(self._cache)
        self._sleep = sleep
        self._keeps_versions = True  # until an object turns out to have none
        self.kept: list[str] = []

    def make(self) -> None:
        """Check that the store gives a name only once, and replaces only what was compared. Raises StoreError.

        There are no folders to make.
        """
        folder = object_names.temporary(self.random(16))
        first = self.swap(folder, b"1", None)
        taken = self.swap(folder, b"2", None)
        second = self.swap(folder, b"3", first)
        late = self.swap(folder, b"4", first)
        self.delete(_current(folder))
        for honoured, condition in (taken == first, "If-None-Match"), (second == late != first, "If-Match"):
            if not honoured or not first:
                raise StoreError(
                    f"{self.place.url} does not honour {condition} on PUT: two writers could overwrite each other; "
                    "use a store that does (S3 and most that speak like it, in newer versions)"
                )

    def put(self, name: str, data: bytes) -> bool:
        for turn in range(CONFLICTS):
            if self._create(name, data):
                return True
            try:  # a lost answer and a retry look like this too
                return self.read(name, 0, len(data) + 1) == data
            except FileNotFoundError:  # 409: another request for this name is undecided
                self._sleep(min(1.0, 0.02 * 2**turn))
        raise StoreError(
            f"cannot write {name} in {self.place.url}: others wrote it all the time; it was not acknowledged"
        )

    def read(self, name: str, offset: int, size: int) -> bytes:
        import obstore

        if not size:
            return b""

        def get() -> bytes:
            return bytes(obstore.get_range(self._remote, name, start=offset, length=size))

        return self._called(f"read {name}", get, missing=name, past_end=b"")

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Return the bytes of several ranges, as `Store.read_ranges` says; near ones come in one request.

        Raises FileNotFoundError, StoreError.
        """
        import obstore

        spans = list[list[int]]()  # joined here: obstore panics where it joins a range with one behind the end
        for offset, size in sorted(ranges):
            if spans and offset - spans[-1][1] <= NEAR:
                spans[-1][1] = max(spans[-1][1], offset + size)
            else:
                spans.append([offset, offset + size])

        def get() -> list[bytes]:
            starts, ends = zip(*spans, strict=True)
            parts = obstore.get_ranges(self._remote, name, starts=starts, ends=ends, coalesce=0)
            return [bytes(part) for part in parts]

        found = self._called(f"read {name}", get, missing=name, past_end=list[bytes]())
        if not found:  # a range behind the end, of an object that is not the one expected, fails all
            return [self.read(name, offset, size) for offset, size in ranges]
        held = [(begin, end, part) for (begin, end), part in zip(spans, found, strict=True)]
        return [
            next(part[at - begin : at - begin + size] for begin, end, part in held if begin <= at < end)
            for at, size in ranges
        ]

    def view(self, name: str) -> memoryview:
        import obstore

        def get() -> memoryview:
            found = obstore.get(self._remote, name)  # its bytes are fetched on demand
            if found.meta["size"] > MOST_WHOLE and folder_of(name) != INDEXES:
                raise CorruptError(f"{name} has {found.meta['size']} bytes, more than any of ours: damaged")
            return memoryview(found.bytes())

        return self._called(f"read {name}", get, missing=name)

    def open(self, name: str) -> File:
        """Return an object to read ranges of; an index from this machine's cache, or as it is wanted if it is large.

        Raises the errors of `view`.
        """
        if folder_of(name) == INDEXES:
            return self._cached(name)
        return Held(self.view(name))

    def list(self, folder: str) -> dict[str, int]:
        """Return names and sizes in a folder, and tidy the cache where it lists indexes.

        Some stores keep an empty object in the folder's name. Raises StoreError.
        """
        import obstore

        def ask() -> dict[str, int]:
            found = obstore.list_with_delimiter(self._remote, folder or None)["objects"]
            return {last_part(item["path"]): item["size"] for item in found if item["path"] != folder}

        what = f"list {folder or 'the archive'}"
        for left in reversed(range(1 + self.place.retries)):
            try:
                names = self._called(what, ask)
                break
            except StoreError as exc:  # obstore asks again where no answer comes, and not where it is cut
                if not left or CUT not in str(exc.__cause__):
                    raise
        if folder == INDEXES:
            self._tidy(names)
        return names

    def delete(self, name: str, *, lasting: bool = True) -> None:
        """Delete an object; a missing one is fine. Raises StoreError.

        Where the bucket keeps versions, the one that can still be read is added to ``kept``.
        """
        import obstore

        with suppress(FileNotFoundError):
            if self._keeps_versions:
                found = self._called(f"read {name}", lambda: obstore.head(self._remote, name), missing=name)
                version = found["version"]
                self._keeps_versions = version is not None
                self.kept += [f"{name} (version {version})"] * self._keeps_versions
            self._called(f"delete {name}", lambda: obstore.delete(self._remote, name), missing=name)
        if folder_of(name) == INDEXES:
            with suppress(OSError):
                (self._cache / last_part(name)).unlink(missing_ok=True)

    def load(self, register: str, known: Content | None = None) -> Content | None:
        import obstore
        from obstore.exceptions import NotModifiedError

        name = _current(register)

        def get() -> Content:
            try:
                found = obstore.get(self._remote, name, options={"if_none_match": known.tag} if known else {})
            except NotModifiedError:
                assert known
                return known
            if found.meta["size"] > MOST_WHOLE:
                raise CorruptError(f"{name} has {found.meta['size']} bytes, more than any of ours: damaged")
            return Content(bytes(found.bytes()), found.meta["e_tag"] or "")

        try:
            return self._called(f"read {name}", get, missing=name)
        except FileNotFoundError:
            return None

    def swap(
        self, register: str, data: bytes, before: Content | None, wait: float = 0.0, spare: bool = False
    ) -> Content | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        name = _current(register)

        def put() -> str | None:
            try:
                how: Any = {"e_tag": before.tag} if before else "create"
                return obstore.put(self._remote, name, data, mode=how, use_multipart=False)["e_tag"]
            except (AlreadyExistsError, PreconditionError, NotFoundError, FileNotFoundError) as exc:
                if CODE.search(text := str(exc)) and "NoSuchBucket" in text:
                    raise
                return None

        if tag := self._called(f"write {name}", put):
            return Content(data, tag)
        self._sleep(wait)
        return self.load(register)  # a lost answer and a retry look like a refusal: then these are our bytes

    def _create(self, name: str, data: bytes) -> bool:
        """PUT if absent; return False where the name is taken."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def put() -> bool:
            try:
                obstore.put(self._remote, name, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

        return self._called(f"write {name}", put)

    def _cached(self, name: str) -> File:
        """Return an index from this machine's copy, fetched again where no sound copy exists; ranges of a large one."""
        path = self._cache / last_part(name)
        with suppress(OSError):
            found = Opened(OsFile(path), f"{path} (a copy that may be deleted)")
            if _is_index(found, path.name):
                return found
        size, front = self._front(name)
        if size > len(front):
            return RangedObject(size, partial(self.read, name), front)
        if self._keep(path, front):
            with suppress(OSError):
                return Opened(OsFile(path), f"{path} (a copy that may be deleted)")
        return Held(front)  # damaged in the store: the caller finds out

    def _front(self, name: str) -> tuple[int, memoryview]:
        """Return the size of an index and its bytes, the first ones where it has more than `MOST_KEPT`.

        Raises the errors of `view`.
        """
        import obstore

        def get() -> tuple[int, memoryview]:
            found = obstore.get(self._remote, name)  # its bytes are fetched on demand
            size = found.meta["size"]
            if size <= MOST_KEPT:
                return size, memoryview(found.bytes())
            front = bytearray()
            for chunk in found.stream(min_chunk_size=FRONT):
                front += chunk
                if len(front) >= FRONT:
                    break
            return size, memoryview(bytes(front))[:FRONT]

        return self._called(f"read {name}", get, missing=name)

    def _keep(self, path: Path, data: memoryview) -> bool:
        """Keep a copy of an index where its bytes are those of its name, and return whether that was possible."""
        with suppress(OSError):  # an unwritable cache costs memory and requests, nothing else
            if not _is_index(Held(data), path.name):
                return False
            self._cache.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
            temporary.write_bytes(data)
            temporary.replace(path)
            return True
        return False

    def _tidy(self, names: Mapping[str, int]) -> None:
        """Delete copies of indexes that are gone."""
        with suppress(OSError):
            for path in self._cache.iterdir():
                if path.name not in names and path.name != GENERATION:
                    path.unlink(missing_ok=True)

    def _called(self, what: str, call: Callable[[], T], *, missing: str | None = None, past_end: T | None = None) -> T:
        """Call obstore and turn its errors into ours.

        Raises FileNotFoundError where the object named ``missing`` does not exist, StoreError otherwise.
        """
        from obstore.exceptions import BaseError

        try:
            return call()
        except (BaseError, OSError) as exc:
            text = str(exc)
            status, code = (m[m.lastindex or 0] if (m := p.search(text)) else "" for p in (STATUS, CODE))
            if status == "416" and past_end is not None:
                return past_end
            if isinstance(exc, FileNotFoundError) and missing and code != "NoSuchBucket":
                raise FileNotFoundError(2, "no such object", missing) from exc
            raise StoreError(f"cannot {what} in {self.place.url}: {_why(exc, status, code, text)}") from exc


def _current(register: str) -> str:
    """Return the name of the object that holds the content of a register."""
    return f"{register}/current"


def _connect(place: BucketPlace) -> S3Store:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError as exc:
        raise StoreError("an archive in a bucket needs the package obstore: pip install 'pltz[s3]'") from exc
    endpoint = _endpoint(place)
    if endpoint and not ENDPOINT.fullmatch(endpoint):
        raise UsageError("expected the endpoint as https://host:port, with its credentials in the environment")
    span = timedelta(seconds=place.timeout)
    try:
        return S3Store(
            place.bucket,
            prefix=place.prefix or None,
            config=dict(place.options),  # type: ignore[arg-type]
            client_options={
                "timeout": span,
                "connect_timeout": min(span, timedelta(seconds=10)),
                "allow_http": endpoint.startswith("http://"),
            },
            retry_config={"max_retries": place.retries, "retry_timeout": 3 * span},
        )
    except BaseError as exc:
        raise UsageError(f"{place.url}: the settings for this store are not valid ({type(exc).__name__})") from exc


def _endpoint(place: BucketPlace) -> str:
    """Return the URL of the server; empty for Amazon's own."""
    named = place.options.get("endpoint") or place.options.get("endpoint_url") or place.options.get("aws_endpoint")
    return named or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""


def _why(exc: Exception, status: str, code: str, text: str) -> str:
    """Return the reason for the user.

    The library's own text is never shown: it is long and may contain private details.
    """
    if code == "NoSuchBucket":
        return "there is no such bucket"
    refused = type(exc).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or code == "AccessDenied"
    if refused or status in ("401", "403"):
        return f"no permission ({code or status or 'credentials'}): check the credentials in the environment"
    if status:
        return f"the store answered {status} {code}".rstrip()
    if "timed out" in text or "Timeout" in text:
        return "no answer in time; what was being written may or may not be there, whole, and was not acknowledged"
    if "Connect" in text:
        return "the store cannot be reached: check the endpoint and the network"
    return f"the request failed ({type(exc).__name__}); nothing was acknowledged"


def _is_index(file: File, name: str) -> bool:
    """Return whether these are all the bytes of the index of that name. False where they cannot be read."""
    try:
        return FileIndex.sealed(file).hex() == name
    except (StoreError, CorruptError):
        return False
