"""Stores: objects by name, with put-if-absent, ranged read, list, size and delete, and registers.

`Store` is the interface; `open_store` returns the one for a path or URL. `s3.ObjectStore` is a bucket (PUT
with ``If-None-Match: *``, ranged GET, LIST, DELETE). `DirectoryStore` is a local directory over `disk.Disk`.
It writes an object under ``tmp/``, syncs it, links it to its name and syncs the directory, in this order. So
a name never stands for bytes that are not durable.

A crash before the link leaves a file in ``tmp/``. A crash after it leaves the object or not, whole in both cases.

A register is the only thing that changes: its content is replaced by who knows its present one (`Store.swap`). A bucket
compares the ETag. A directory numbers the contents, and gives each number to one writer (WRITING.md, "The register").

So that a full disk can be emptied, puts leave room on it: see `Store.want_room`.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from pltz.archive.errors import FullError, StoreError, UnreadableError, WriterFailed, is_full, reason
from pltz.archive.format import object_names
from pltz.archive.format.byte_source import File
from pltz.archive.format.object_names import FOLDERS, SETTINGS, folder_of
from pltz.archive.humanize import size as size_of
from pltz.archive.storage.disk import Disk, Stamp, now, ticks
from pltz.archive.storage.seen import SeenGenerations
from pltz.plt_codec.errors import CorruptError

# bytes overwritten when shredding; a larger file is not one of ours and may be sparse
MOST_SECRET = 64 << 20
MOST_WHOLE = 1 << 31  # bytes of a pack or its parity
BAD_BYTES = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)  # errors of a disk or file system for unreadable bytes
TURNS = 100  # at a register that others replace meanwhile
LOOKS = 4  # for a content before there is none
LEAST_FREE = 64 << 20  # bytes of a disk that puts leave to forget, erase and collect; of a small one an eighth


class Content(NamedTuple):
    """The content of a register, and the tag that the store gave it. No two contents are of the same bytes."""

    data: bytes
    tag: str


class Store(ABC):
    """A store of whole, immutable objects, and of registers. What a bucket has nothing to do for is done here.

    Listing is strongly consistent: it contains everything put before.

    Attributes:
        remote: whether each call is a request over a network.
        kept: what was deleted through this object and can still be read, as versions that a bucket keeps.
        seen: the generations of manifests that were seen here.
        now: returns the seconds since 1970. ``ticks``: the same in units of 2^-20 seconds.
        random: returns so many unpredictable bytes.
    """

    remote = True
    kept: Sequence[str] = ()
    seen: SeenGenerations
    now: Callable[[], int] = staticmethod(now)
    ticks: Callable[[], int] = staticmethod(ticks)
    random: Callable[[int], bytes] = staticmethod(os.urandom)

    @abstractmethod
    def make(self) -> None:
        """Prepare an empty place for an archive. Raises StoreError, WriterFailed."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> bool:
        """Put an object, durable on return. Return False if the name stands for other bytes.

        Nothing has changed in that case.

        Raises:
            StoreError: not acknowledged: absent, or there and whole where an answer was lost.
            WriterFailed: a sync failed, so nothing may be trusted.
        """

    def put_spare(self, name: str, data: bytes) -> None:
        """Put an object that a power cut may take again. Raises StoreError, WriterFailed."""
        self.put(name, data)

    def ahead(self, contents: Sequence[bytes]) -> AbstractContextManager[None]:
        """Return a context in which puts and swaps of these contents, the same objects, take less time.

        A directory writes and syncs them together before it begins. Where it cannot, they are put as without it. Raises
        WriterFailed.
        """
        return nullcontext()

    @abstractmethod
    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes at ``offset``. Raises FileNotFoundError, StoreError, UnreadableError."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Return the bytes of several ranges, each (offset, size), as `read` does. They are asked for side by side.

        Raises the errors of `read`.
        """
        return [self.read(name, offset, size) for offset, size in ranges]

    @abstractmethod
    def view(self, name: str) -> memoryview:
        """Return the whole object, in memory.

        Raises the errors of `read`, and CorruptError for one larger than any of ours.
        """

    @abstractmethod
    def open(self, name: str) -> File:
        """Return an object to read ranges of; it stays valid after a delete, but for a large index of a bucket.

        Reads of that raise FileNotFoundError then. Raises the errors of `view`, its reads StoreError, UnreadableError.
        """

    def stamp(self, name: str) -> Stamp | None:
        """Return what changes where an object is damaged by a write, cut off or replaced; None over a network.

        There it would be a request, and nothing can be written into an object. Raises FileNotFoundError, StoreError.
        """
        return None

    @abstractmethod
    def list(self, folder: str) -> dict[str, int]:
        """Return the names in a folder, without it, and sizes in bytes.

        Raises StoreError; a failure never gives an empty answer.
        """

    @abstractmethod
    def delete(self, name: str, *, lasting: bool = True) -> None:
        """Delete an object, durably on return; a missing one is fine. Raises StoreError, WriterFailed.

        ``lasting``: False: a power cut may bring it back.
        """

    def shred(self, name: str) -> None:
        """Delete an object after overwriting its bytes where the store can: a bucket may keep a version of it.

        Raises StoreError, WriterFailed.
        """
        self.delete(name)

    def settle(self, folder: str) -> None:
        """Make everything listed in a folder durable, whichever process put it. Raises WriterFailed."""
        return  # what a bucket lists is durable

    @abstractmethod
    def load(self, register: str, known: Content | None = None) -> Content | None:
        """Return the content of a register, one that was acknowledged before the call or a later one; None without one.

        ``register``: the name of a folder that has nothing else. ``known``: returned as it is where it is the present
        one. Raises StoreError, UnreadableError.
        """

    def earlier(self, register: str) -> Sequence[bytes]:
        """Return contents that a register had before its present one, the newest first, as far as they are kept.

        Raises StoreError.
        """
        return []

    @abstractmethod
    def swap(
        self, register: str, data: bytes, before: Content | None, wait: float = 0.0, spare: bool = False
    ) -> Content | None:
        """Replace the content of a register where its present one is ``before``; None: where it has none.

        ``data`` has random bytes, so that no content ever comes back. ``wait``: seconds to wait where another was first
        before its content is read, which is then the newer. ``spare``: `earlier` need not have ``before``.
        Returns what it has now: ``data``, durably, or what another was first with, or None where it lost its content.

        Raises:
            StoreError: not acknowledged, as it was, or replaced where an answer was lost.
            WriterFailed: a sync failed, so nothing may be trusted.
        """

    def want_room(self) -> None:
        """Check that a disk has room for who frees some: forget, erase and collect do not ask. Raises FullError."""
        return  # a bucket is never full

    def left(self, age: int) -> Sequence[str]:
        """Return names under ``tmp/`` not written to for ``age`` seconds, by the clock that dated them.

        Raises StoreError.
        """
        return []


class Opened:
    """A file of a `DirectoryStore` whose errors name it."""

    def __init__(self, file: File, name: str):
        self._file, self._name, self.size = file, name, file.size

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return at most ``size`` bytes at ``offset``. Raises StoreError, UnreadableError."""
        try:
            return self._file.read(offset, size)
        except OSError as exc:
            raise _unread(self._name, exc) from exc


class DirectoryStore(Store):
    """A local directory over a `Disk`. ``cache``: folder, outside the archive, of the generations that were seen."""

    remote = False

    def __init__(self, disk: Disk, *, cache: Path | None = None):
        self.seen = SeenGenerations(cache)
        self.disk = disk
        self.now, self.ticks, self.random = disk.now, disk.ticks, disk.random
        self.failed: str | None = None  # reason why no more may be written
        self._lasting: set[str] = set()  # folders whose own names are durable
        self._ahead = dict[str, bytes]()  # contents of `ahead`, by their names under tmp/

    def make(self) -> None:
        """Create the folders, durably. Raises StoreError, WriterFailed."""
        self._make("", *FOLDERS)

    def put(self, name: str, data: bytes) -> bool:
        return self._put(name, data, lasting=True)

    def put_spare(self, name: str, data: bytes) -> None:
        self._put(name, data, lasting=False)

    def _put(self, name: str, data: bytes, *, lasting: bool) -> bool:
        self._check()
        temporary, (folder, _, _) = self._staged(name, data), name.rpartition("/")
        try:
            self._in_folder(name, lambda: self.disk.link(temporary, name))
        except (FileExistsError, FileNotFoundError) as exc:
            self._drop(temporary)
            if isinstance(exc, FileNotFoundError) and not is_there(self, name):
                raise _named(f"link {name}", exc) from exc
            # the name is taken, perhaps by a key file to which this one lost: an erase shreds those that lost
            self._sync_directory(folder)  # its writer may not have synced it yet
            return self._same(name, data)
        except OSError as exc:
            self._drop(temporary)
            raise _named(f"link {name}", exc) from exc
        if lasting:
            self._sync_folder(folder)
        self._drop(temporary)
        return True

    @contextmanager
    def ahead(self, contents: Sequence[bytes]) -> Iterator[None]:
        written = self._written_ahead(contents)
        self._ahead |= written
        try:
            yield
        finally:
            for temporary in written:
                if self._ahead.pop(temporary, None) is not None:
                    self._drop(temporary)

    def read(self, name: str, offset: int, size: int) -> bytes:
        try:
            return self.disk.read(name, offset, size)
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise _unread(name, exc) from exc

    def view(self, name: str) -> memoryview:
        file = self.open(name)
        if file.size > MOST_WHOLE:
            raise CorruptError(f"{name} has {file.size} bytes, more than any of ours: damaged")
        return memoryview(file.read(0, file.size))

    def open(self, name: str) -> Opened:
        try:
            return Opened(self.disk.open(name), name)
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise _unread(name, exc) from exc

    def stamp(self, name: str) -> Stamp:
        try:
            return self.disk.stamp(name)
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise _unread(name, exc) from exc

    def list(self, folder: str) -> dict[str, int]:
        """Return names and sizes in a folder. Raises StoreError where it is missing although it was not empty."""
        try:
            return dict(self.disk.names(folder))
        except FileNotFoundError as exc:
            if self._dropped(folder):
                return {}
            if folder in FOLDERS and SETTINGS in self._sizes(""):
                raise StoreError(
                    f"{folder}/ is gone, and other files of this archive say that something was in it: put it back, "
                    f"or make an empty one and run pltz archive repair"
                ) from exc
            raise _named(f"list {folder or 'the archive'}", exc) from exc
        except OSError as exc:
            raise _named(f"list {folder or 'the archive'}", exc) from exc

    def delete(self, name: str, *, lasting: bool = True) -> None:
        self._check()  # after a failed sync the remaining objects may not be durable
        try:
            self.disk.unlink(name)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise _named(f"delete {name}", exc) from exc
        if lasting:
            self._sync_directory(folder_of(name))

    def shred(self, name: str) -> None:
        """Overwrite an object with zeros, sync it and delete it. Raises StoreError, WriterFailed."""
        self._check()
        try:
            zeros = bytes(min(self.disk.open(name).size, MOST_SECRET))
            self.disk.overwrite(name, zeros)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise _named(f"overwrite {name}", exc) from exc
        try:
            self.disk.sync_file(name)
        except FileNotFoundError:
            return  # another process shredded it, and synced zeros before it removed the name
        except OSError as exc:
            self._fail(f"{name}: {exc}", exc)
        self.delete(name)

    def settle(self, folder: str) -> None:
        """Sync a folder. Raises WriterFailed."""
        self._check()
        try:
            self.disk.sync_directory(folder)
        except OSError as exc:
            if not (
                isinstance(exc, FileNotFoundError) and self._dropped(folder)
            ):  # an empty folder that was dropped lists nothing
                self._fail(f"{folder or 'root'}: {exc}", exc)

    def load(self, register: str, known: Content | None = None) -> Content | None:
        following = _numbered(register, int(known.tag, 16) + 1) if known else ""
        if known and not self._is_named(following) and self._is_there(register, known):
            return known
        looks = LOOKS
        for _ in range(TURNS):
            numbers = self._numbers(register)
            if not numbers and known and SETTINGS not in self._sizes(""):
                raise StoreError(f"{register}/ and {SETTINGS} are gone: is the disk there?")
            if not numbers:  # or it was replaced meanwhile: too late for the new name, and the old one is gone
                if not (looks := looks - 1):
                    return None
                continue
            try:
                return Content(bytes(self.view(_numbered(register, numbers[-1]))), f"{numbers[-1]:016x}")
            except FileNotFoundError:  # replaced meanwhile
                continue
        raise StoreError(f"others replace {register} all the time: try again")

    def earlier(self, register: str) -> Sequence[bytes]:
        try:
            return [bytes(self.view(_before(register)))]
        except (FileNotFoundError, CorruptError):
            return []

    def swap(
        self, register: str, data: bytes, before: Content | None, wait: float = 0.0, spare: bool = False
    ) -> Content | None:
        self._check()
        number = int(before.tag, 16) + 1 if before else 1
        name = _numbered(register, number)
        temporary = self._staged(name, data)
        try:
            self._in_folder(name, lambda: self.disk.link(temporary, name))
        except FileExistsError:
            self._drop(temporary)
            self.disk.sleep(wait)
            return self.load(register)
        except OSError as exc:
            self._drop(temporary)
            raise _named(f"link {name}", exc) from exc
        # the number was free: nobody had it yet, or it is gone again, as all before it are
        if before:
            lost = not self._is_there(register, before)
        else:
            lost = max(self._numbers(register), default=number) > number
        if lost:
            self._drop(name)
            self._drop(temporary)
            self.disk.sleep(wait)
            return self.load(register)
        self._sync_folder(register)
        self._drop_below(register, number, spare=spare)
        self._drop(temporary)
        return Content(data, f"{number:016x}")

    def want_room(self) -> None:
        try:
            free, size = self.disk.room()
        except OSError as exc:
            raise _named("ask how much room the disk has", exc) from exc
        least = min(LEAST_FREE, size // 8)
        if free < least:
            raise FullError(
                f"the disk has {size_of(free)} left, and {size_of(least)} are for forget, erase and collect: "
                "nothing was put. Free space on it, or forget sessions and run pltz archive collect twice"
            )

    def left(self, age: int) -> Sequence[str]:
        """Return names under ``tmp/`` not written to for ``age`` seconds, as far as a new file tells the time.

        The clock of this process may be wrong: it would take the files of others who write now. Raises StoreError.
        """
        names, found = object_names.temporaries_among(self.list(object_names.TEMPORARY)), list[str]()
        if not names:
            return found
        own = object_names.temporary(self.disk.random(16))
        try:
            self._write(own, b"")
            before = self.disk.changed(own) - age
        except OSError as exc:
            raise _named("write a temporary file", exc) from exc
        finally:
            self._drop(own)
        for name in names:
            try:
                if self.disk.changed(name) < before:
                    found.append(name)
            except FileNotFoundError:  # linked to its name since
                continue
            except OSError as exc:
                raise _named(f"look at {name}", exc) from exc
        return found

    def _staged(self, name: str, data: bytes) -> str:
        """Write a file under ``tmp/``, sync it and return its path. ``name``: its name to be, for errors.

        Raises StoreError, FullError, WriterFailed.
        """
        for temporary, known in self._ahead.items():
            if known is data:
                del self._ahead[temporary]
                return temporary
        temporary = object_names.temporary(self.disk.random(16))
        try:
            self._write(temporary, data)
        except OSError as exc:
            raise _named(f"write {name}", exc, len(data)) from exc
        try:
            self.disk.sync_file(temporary)
        except FileNotFoundError as exc:  # a collector deleted the file of a writer that stalled for a day
            raise _named(f"write {name}", exc) from exc
        except OSError as exc:
            self._fail(f"{name}: {exc}", exc)
        return temporary

    def _written_ahead(self, contents: Sequence[bytes]) -> dict[str, bytes]:
        """Write files under ``tmp/``, sync them and return their contents by path; none where not all can be.

        Raises WriterFailed.
        """
        self._check()
        written = dict[str, bytes]()
        try:
            random = self.disk.random(16 * len(contents))
            names = [object_names.temporary(random[16 * n : 16 * n + 16]) for n in range(len(contents))]
            for temporary, data in zip(names, contents, strict=True):
                self._write(temporary, data)
                written[temporary] = data
            try:
                self.disk.sync_files(list(written))
            except FileNotFoundError:  # a collector deleted the file of a writer that stalled for a day
                raise
            except OSError as exc:
                self._fail(f"{object_names.TEMPORARY}: {exc}", exc)
        except (OSError, StoreError):  # who puts them one by one is told
            for temporary in written:
                self._drop(temporary)
            return {}
        return written

    def _numbers(self, register: str) -> Sequence[int]:
        """Return the numbers of a register's contents that are there, ascending. Raises StoreError."""
        return sorted(object_names.numbers_among(self._sizes(register)))

    def _is_there(self, register: str, content: Content) -> bool:
        """Return whether a content is there. Its number is not enough: after a loss the numbers begin again.

        Raises StoreError.
        """
        try:
            return self.read(_numbered(register, int(content.tag, 16)), 0, len(content.data) + 1) == content.data
        except (FileNotFoundError, UnreadableError):
            return False

    def _is_named(self, name: str) -> bool:
        """Return whether a file has this name. Raises StoreError."""
        try:
            self.disk.changed(name)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise _named(f"look at {name}", exc) from exc
        return True

    def _drop_below(self, register: str, number: int, *, spare: bool) -> None:
        """Drop the contents before a number, the lowest first: a number is free only after all before it are gone.

        The last of them stays, under another name, for `earlier`, unless it is ``spare``.
        """
        numbers = [old for old in self._numbers(register) if old < number]
        for old in numbers:
            try:
                if old == numbers[-1] and not spare:
                    self.disk.rename(_numbered(register, old), _before(register))
                else:
                    self.disk.unlink(_numbered(register, old))
            except FileNotFoundError:
                continue
            except OSError:  # it stays below the newest, where nothing reads it
                return

    def _write(self, path: str, data: bytes) -> None:
        """Create a file, and remove it again where that fails. Raises OSError, StoreError."""
        try:
            self._in_folder(path, lambda: self.disk.write_new(path, data))
        except OSError:
            self._drop(path)
            raise

    def _make(self, *folders: str) -> None:
        """Create folders, durably. Raises StoreError, WriterFailed."""
        try:
            for folder in folders:
                self.disk.make_directory(folder)
        except OSError as exc:
            raise _named("create the archive's folders", exc) from exc
        self._sync_directory("")

    def _in_folder(self, path: str, write: Callable[[], None]) -> None:
        """Write a name into a folder, creating the folder again where it was empty and dropped.

        Raises the errors of ``write`` and `_make`.
        """
        try:
            write()
        except FileNotFoundError:
            if not self._dropped(folder_of(path)):
                raise
            self._make(folder_of(path))
            write()

    def _dropped(self, folder: str) -> bool:
        """Return whether a missing folder was empty: tools that copy files drop empty folders.

        If archive.json is missing too, the disk may be missing. If other files show that there were packs, these are
        lost. In both cases the folder must not be taken for empty, nor be created. Raises StoreError.
        """
        if folder not in FOLDERS or SETTINGS not in self._sizes(""):
            return False
        kinds = object_names.parity, object_names.index
        return folder != object_names.PACKS or not any(kind.listed(self._sizes) for kind in kinds)

    def _sizes(self, folder: str) -> dict[str, int]:
        """Return names and sizes of files; none where there is no such folder. Raises StoreError."""
        try:
            return dict(self.disk.names(folder))
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise _named(f"list {folder or 'the archive'}", exc) from exc

    def _check(self) -> None:
        """Raise WriterFailed once a sync has failed: the disk may then differ from the visible state."""
        if self.failed:
            raise WriterFailed(f"an earlier sync failed ({self.failed}): open the archive again and check it")

    def _same(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name, 0, len(data) + 1) == data
        except FileNotFoundError:
            return False  # deleted since
        except UnreadableError as exc:
            raise StoreError(
                f"{name} is there and cannot be read: nothing was acknowledged; see pltz archive repair"
            ) from exc

    def _sync_directory(self, folder: str) -> None:
        try:
            self.disk.sync_directory(folder)
        except OSError as exc:
            self._fail(f"{folder or 'root'}: {exc}", exc)

    def _sync_folder(self, folder: str) -> None:
        """Sync a folder that got a name, and the first time the root, which has its own. Raises WriterFailed."""
        self._sync_directory(folder)
        if folder not in self._lasting:  # another writer may have made it again without a sync yet
            self._sync_directory("")
            self._lasting.add(folder)

    def _fail(self, why: str, exc: OSError) -> None:
        self.failed = why
        raise WriterFailed(
            f"cannot sync {why}: what was just written may not last, and was not acknowledged; "
            "check the disk, then open the archive again"
        ) from exc

    def _drop(self, temporary: str) -> None:
        """Remove a temporary file. One that stays in tmp/ does no harm, and a collector removes it."""
        try:
            self.disk.unlink(temporary)
        except OSError:
            pass


def remains(store: Store, *, made: bool = False) -> str | None:
    """Return a folder with content that shows that an archive is here; None without one.

    ``made``: the folders are there, so one that cannot be listed raises StoreError.
    """
    for folder in (object_names.PACKS, object_names.KEYS, object_names.PARITY, object_names.MANIFEST):
        try:
            if store.list(folder):
                return folder
        except StoreError:  # without archive.json a missing folder is not read as an empty one
            if made:
                raise
    return None


def is_there(store: Store, name: str) -> bool:
    """Return whether an object of that name exists. Raises StoreError."""
    try:
        store.read(name, 0, 1)
    except FileNotFoundError:
        return False
    except UnreadableError:  # unreadable, but it exists
        return True
    return True


def _numbered(register: str, number: int) -> str:
    """Return the name of the content of this number in a register."""
    return f"{register}/{number:016x}"


def _before(register: str) -> str:
    """Return the name of the content that a register had before its present one."""
    return f"{register}/before"


def _unread(name: str, exc: OSError) -> StoreError | UnreadableError:
    if exc.errno in BAD_BYTES:
        return UnreadableError(
            f"the disk cannot read {name} ({exc.strerror}): check the disk, then pltz archive repair"
        )
    return _named(f"read {name}", exc)


def _named(what: str, exc: OSError, size: int = 0) -> StoreError:
    """Return the error of a failed call. ``size``: bytes that were to be written."""
    if is_full(exc):
        need = f" ({size} bytes)" if size else ""
        return FullError(
            f"cannot {what}{need}: {reason(exc)}; the archive is as it was. Free space on its disk, or forget sessions "
            f"and run pltz archive collect twice"
        )
    return StoreError(f"cannot {what}: {reason(exc)}; the archive is as it was")
