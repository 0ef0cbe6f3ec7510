"""Add bundles to the user's folder and remove them from it (docs/bundles.md).

A bundle comes as a folder, as a zip or tar file of one, or from the hub. Its bundle.json is read first. It
names the files by their exact names and sizes, so nothing else in the source is unpacked or fetched. The copy
is loaded, which computes its fingerprint. Only then does a rename give it its name, so it is there whole or
not at all.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from pltz.models.bundle import locations
from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.folder import (
    CARD,
    HEAD,
    MAX_CARD,
    MAX_DICTIONARY,
    MAX_HEAD,
    MAX_TOKENIZER,
    MAX_WEIGHTS,
    BundleFolder,
    publish,
    sync,
)
from pltz.models.bundle.locations import NAME, PLTZ, USER, BundleLocation, user_folder
from pltz.plt_codec.errors import BundleMismatch, ModelError, PltzError, UsageError

WRITTEN_CARD = "CARD.md"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")  # OWNER/NAME@REVISION
MAX_BUNDLE = MAX_WEIGHTS + MAX_TOKENIZER + MAX_DICTIONARY  # bytes of a bundle's files
MAX_MEMBERS = 10_000  # of a zip or tar file
MAX_ARCHIVE = 2 << 30  # bytes of a tar file, unpacked
MAX_READ = 1 << 24  # bytes that tarfile may ask for at once: headers come in one read
CHUNK = 1 << 20
PART, REMOVED = ".part-", ".removed-"

Take = Callable[[str, Path, int], bool]
"""take(name, to, limit): copy a file of the source, of at most `limit` bytes; False where the source lacks it."""


def add(source: str, *, name: str | None = None, bundle_id: str | None = None) -> BundleLocation:
    """Add a bundle to the user's folder and return its location. Adding an existing one again changes nothing.

    Args:
        source: a bundle folder, a zip or tar file of one, or a hub name: OWNER/NAME or OWNER/NAME@REVISION.
        name: the name it gets; by default the one in its bundle.json.
        bundle_id: the fingerprint it must have, 32 hexadecimal digits.

    Raises:
        UsageError: no such source; a bad name, or one that another bundle has.
        BundleMismatch: the bundle is sound but has another fingerprint.
        ModelError, VersionError: the bundle is damaged, incomplete, too large or too new, or cannot be
            fetched.
    """
    if bundle_id is not None and not re.fullmatch(r"[0-9a-fA-F]{32}", bundle_id):
        raise UsageError(f"expected a fingerprint of 32 hexadecimal digits, found {bundle_id!r}")
    with _held() as root, _source(source) as take:
        part = Path(tempfile.mkdtemp(prefix=PART, dir=root))
        try:
            _copy(take, part, source)
            loaded = Bundle.load(part)
            if bundle_id is not None and loaded.id.hex() != bundle_id.lower():
                raise BundleMismatch(
                    f"expected bundle {bundle_id.lower()}, found {loaded.id.hex()} ({loaded.name}) in {source}: "
                    "ask where you have it from which is right"
                )
            chosen = name or loaded.name
            if not NAME.fullmatch(chosen):
                raise UsageError(
                    f"{chosen!r} is no name for a bundle: expected at most 64 letters, digits, dots, hyphens and "
                    "underscores, the first a letter or digit; choose one with --name"
                )
            if (here := locations.by_name(chosen)) is not None:
                if locations.by_id(loaded.id) == here:
                    return here
                raise UsageError(
                    f"another bundle has the name {chosen} ({here.source}, {here.folder}): choose one with --name"
                )
            part.chmod(0o755)  # mkdtemp's is private
            publish(part, root / chosen)
            return BundleLocation(chosen, root / chosen, USER)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def added(name: str) -> BundleLocation:
    """Return the location of an added bundle.

    Raises:
        UsageError: there is none, or it was not added.
    """
    found = locations.by_name(name)
    if found is None:
        raise UsageError(f"no bundle {name!r}: expected one that `pltz bundle list` shows")
    if found.source == PLTZ:
        raise UsageError(
            f"bundle {name} is part of pltz: only a bundle from `pltz bundle add` can be removed"
        )
    if found.source != USER:
        raise UsageError(f"bundle {name} came with {found.source}: uninstall that distribution")
    return found


def remove(name: str) -> BundleLocation:
    """Remove an added bundle and return its former location.

    Raises:
        UsageError: there is none, or it was not added.
    """
    with _held() as root:
        location = added(name)
        os.rename(location.folder, Path(tempfile.mkdtemp(prefix=REMOVED, dir=root)) / name)
        sync(root)
        _sweep(root)
        return location


@contextmanager
def _held() -> Iterator[Path]:
    """Make the user's folder and hold its lock. Leftovers of runs that were killed go."""
    root = user_folder()
    if not root.is_absolute():
        raise UsageError(
            f"expected an absolute path for added bundles, found {root}: set {locations.USER_VARIABLE}"
        )
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep(root)
        yield root


def _sweep(root: Path) -> None:
    for prefix in (PART, REMOVED):
        for left in root.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)


def _copy(take: Take, part: Path, source: str) -> None:
    """Copy bundle.json, the files it names and the cards."""
    if not take(HEAD, part / HEAD, MAX_HEAD):
        raise ModelError(
            f"expected a bundle at {source}, found no {HEAD} there: give its folder, file or hub name"
        )
    head = BundleFolder.open(part)
    sizes = [size for size, _ in head.files.values()]
    if min(sizes, default=0) < 0 or sum(sizes) > MAX_BUNDLE:
        raise ModelError(
            f"the bundle at {source} claims {sum(sizes)} bytes, at most {MAX_BUNDLE} are allowed"
        )
    for file, (size, _) in head.files.items():
        if not take(file, part / file, size):
            raise ModelError(f"the bundle at {source} is incomplete: it has no {file}")
    for card in (CARD, WRITTEN_CARD):
        take(card, part / card, MAX_CARD)


@contextmanager
def _source(source: str) -> Iterator[Take]:
    """Open a folder, a file or a hub name."""
    path = Path(source)
    if path.is_dir():
        yield lambda name, to, limit: _take_file(path / name, to, limit)
    elif path.is_file():
        opener = _zip if zipfile.is_zipfile(path) else _tar
        with opener(path) as take:
            yield take
    elif HUB_NAME.fullmatch(source):
        with tempfile.TemporaryDirectory(prefix="pltz-hub-") as place:
            yield _hub(source, Path(place))
    else:
        raise UsageError(
            f"expected a bundle folder, a zip or tar file, or a hub name; found nothing at {source!r}"
        )


def _take_file(path: Path, to: Path, limit: int) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        _write(file, to, limit)
    return True


def _write(file: IO[bytes], to: Path, limit: int) -> None:
    """Copy at most `limit` bytes. Raises ModelError where there are more."""
    left = limit + 1
    with to.open("xb") as out:
        while left and (chunk := file.read(min(CHUNK, left))):
            out.write(chunk)
            left -= len(chunk)
    if not left:
        raise ModelError(f"bundle file {to.name} has more than the {limit} bytes that are expected")


@contextmanager
def _zip(path: Path) -> Iterator[Take]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()[:MAX_MEMBERS]}
            top = _top(list(members), path)

            def take(name: str, to: Path, limit: int) -> bool:
                info = members.get(top + name)
                if info is None:
                    return False
                with archive.open(info) as file:
                    _write(file, to, limit)
                return True

            yield take
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        EOFError,
    ) as exc:
        raise ModelError(f"{path} is no zip file that can be read ({exc}): get it again") from exc


@contextmanager
def _tar(path: Path) -> Iterator[Take]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with (
            cast("IO[bytes]", gzip.open(path)) if packed else path.open("rb") as plain,
            tarfile.open(fileobj=cast("IO[bytes]", _Bounded(plain)), mode="r:") as archive,
        ):
            members: dict[str, tarfile.TarInfo] = {}
            for member in archive:
                members[str(PurePosixPath(member.name))] = member
                if len(members) >= MAX_MEMBERS:
                    break
            top = _top(list(members), path)

            def take(name: str, to: Path, limit: int) -> bool:
                member = members.get(top + name)
                content = archive.extractfile(member) if member is not None and member.isreg() else None
                if content is None:
                    return False
                _write(content, to, limit)
                return True

            yield take
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError) as exc:
        raise ModelError(
            f"expected a zip or tar file of a bundle at {path}, found none that can be read ({exc})"
        ) from exc


def _top(names: list[str], path: Path) -> str:
    """Return the prefix of a bundle's files in a zip or tar file: empty, or the name of a folder with a slash."""
    heads = [name for name in names if name == HEAD or (name.endswith(f"/{HEAD}") and name.count("/") == 1)]
    if len(heads) != 1:
        raise ModelError(
            f"expected one {HEAD} in {path}, at its root or in one folder; found {len(heads)}: pack one bundle folder"
        )
    return heads[0].removesuffix(HEAD)


class _Bounded:
    """A file for tarfile that refuses to read or skip more than a bundle can hold, for its headers are not bounded."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Read at most MAX_READ bytes. Raises ModelError."""
        if not 0 <= size <= MAX_READ:
            raise ModelError(f"the tar file has a header of {size} bytes, at most {MAX_READ} are allowed")
        return self._file.read(size)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position of at most MAX_ARCHIVE. Raises ModelError."""
        if whence != os.SEEK_SET or not 0 <= position <= MAX_ARCHIVE:
            raise ModelError(
                f"the tar file has a member at byte {position}, at most {MAX_ARCHIVE} are allowed"
            )
        return self._file.seek(position)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()


def _hub(source: str, place: Path) -> Take:
    """Fetch files of a hub repository into a folder, each when its size is known to be right."""
    import huggingface_hub as hub

    repository, _, revision = source.partition("@")
    where: dict[str, Any] = {"repo_id": repository, "revision": revision or None}

    def take(name: str, to: Path, limit: int) -> bool:
        try:
            size = hub.get_hf_file_metadata(hub.hf_hub_url(filename=name, **where)).size
            if size is None or size > limit:
                raise ModelError(f"{source} has {size} bytes of {name}, at most {limit} are expected")
            return _take_file(Path(hub.hf_hub_download(filename=name, local_dir=place, **where)), to, limit)
        except hub.errors.RemoteEntryNotFoundError:
            return False
        except PltzError:
            raise
        except (
            Exception
        ) as exc:  # the hub client raises errors of its own, of its HTTP client and of the system
            raise ModelError(
                f"cannot fetch {name} of {source} from the hub ({_first_line(exc)}): check the name and the network, "
                "or download the bundle and give its folder"
            ) from exc

    return take


def _first_line(exc: Exception) -> str:
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0][:300]}" if lines else type(exc).__name__
