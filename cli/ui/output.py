"""The output of a command: a file that appears whole or not at all, or stdout.

Write order: a temporary file in the folder of the target, its bytes, fsync, then the name, then fsync of the folder.
The name comes from a hard link when nothing may be overwritten, and from a rename with ``--force``. A crash before
the name leaves a stray ``.<name>.*.part``; a crash after it leaves the finished file. The old file, if any, stays
until the rename.

    output = Output("chats.pltz", force=False, inputs=["chats.jsonl"])   # refuses now, before the work
    output.write([data])
"""

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import click

from pltz.plt_codec.errors import UsageError

IN_MEMORY = 1 << 24  # bytes held for stdout before they go into a file
PIECE = 1 << 20  # bytes
INTERRUPTED = "pltz.interrupted"  # key in click's context of the message that an interrupt prints


class Output:
    """One destination, checked before the work and written after it.

    Args:
        path: a file name, or ``-`` for stdout.
        force: replace the file if it exists.
        inputs: names the command reads; none of them may be the destination.
        binary: the bytes are not text, so stdout must not be a terminal.

    Raises:
        UsageError: the destination exists, is a folder, is an input, or its folder is missing.
    """

    def __init__(self, path: str, *, force: bool = False, inputs: Iterable[str] = (), binary: bool = True) -> None:
        self.name = path
        self.force = force
        self.to_stdout = path == "-"
        self.written = 0  # bytes
        say_if_interrupted("interrupted, nothing was written", first=True)
        if not path:
            raise UsageError("the name of the file to write is empty: name one, or - for stdout")
        if self.to_stdout:
            if binary and sys.stdout.isatty():
                raise UsageError("will not write binary data to a terminal: use -o FILE, or redirect stdout")
            return
        self.path = Path(os.path.realpath(path))  # a link keeps being a link; its target is replaced
        self._check(inputs)

    def _check(self, inputs: Iterable[str]) -> None:
        if not self.path.parent.is_dir():
            raise UsageError(f"folder {self.path.parent} does not exist: create it first")
        if self.path.is_dir():
            raise UsageError(f"{self.name} is a folder: name a file")
        if self.path.exists() and any(reads(other, self.path) for other in inputs if other != "-"):
            raise UsageError(f"{self.name} is also an input, and inputs are never modified")
        if self._is_file() and not self.force:
            raise UsageError(f"{self.name} exists: choose another name or pass --force to replace it")

    def _is_file(self) -> bool:
        return self.path.exists() and self.path.is_file()

    def write(self, chunks: Iterable[bytes], *, whole: bool = False) -> None:
        """Write all chunks. A file appears under its name only when every byte is on disk.

        Args:
            whole: write nothing to stdout either before the last chunk is there. Until then a nameless temporary file
                holds the chunks.

        Raises:
            UsageError: the file was created by another process in the meantime and ``force`` is off.
            OSError: the disk refused. The destination is unchanged.
        """
        try:
            with contextlib.ExitStack() as held:
                if whole and self.to_stdout:
                    file = held.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY))
                    file.writelines(chunks)
                    chunks = kept(file)
                self._write(self._counted(chunks))
        except OSError as error:
            name = "stdout" if self.to_stdout else self.name
            raise type(error)(error.errno, error.strerror, name) from error

    def report(self, text: str) -> None:
        """Print what was done on stdout, or on stderr where stdout carries the file."""
        if self.to_stdout:
            click.echo(text, err=True)
        else:
            write_text(text)

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.written += len(chunk)
            yield chunk

    def _write(self, chunks: Iterable[bytes]) -> None:
        if self.to_stdout:
            for chunk in chunks:
                say_if_interrupted("interrupted: what stdout got is cut off")
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        elif self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            with self.path.open("wb") as sink:  # a pipe or device cannot be written atomically
                sink.writelines(chunks)
        else:
            self._write_file(chunks)

    def _write_file(self, chunks: Iterable[bytes]) -> None:
        # A file name may have at most 255 bytes.
        short = os.fsencode(self.path.name)[:80].decode("utf-8", "ignore")
        handle, temporary = tempfile.mkstemp(prefix=f".{short}.", suffix=".part", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as sink:
                sink.writelines(chunks)
                sink.flush()
                os.fchmod(sink.fileno(), self._mode())
                os.fsync(sink.fileno())
            self._publish(temporary)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_folder(self.path.parent)
        say_if_interrupted(f"interrupted after {printable(self.name)} was written")

    def _mode(self) -> int:
        """Return the permissions of the replaced file, or those of a new file (mkstemp's are private)."""
        if self.path.exists():
            return stat.S_IMODE(self.path.stat().st_mode)
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask

    def _publish(self, temporary: str) -> None:
        if self.force:
            os.replace(temporary, self.path)
            return
        try:
            os.link(temporary, self.path)  # unlike a rename, a link never replaces anything
        except FileExistsError as error:
            raise UsageError(f"{self.name} came into being meanwhile: nothing was written") from error
        except OSError:  # a file system without hard links
            os.replace(temporary, self.path)


def kept(file: IO[bytes]) -> Iterator[bytes]:
    """Yield all that a temporary file holds, in pieces."""
    file.seek(0)
    while piece := file.read(PIECE):
        yield piece


def reads(source: str, path: Path) -> bool:
    """Return whether reading ``source`` (a file, or a folder and all in it) reads the existing file ``path``."""
    if not os.path.exists(source):
        return False
    return os.path.samefile(source, path) or path.is_relative_to(os.path.realpath(source))


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable, where the system lets a folder be opened and synced."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def say_if_interrupted(text: str | Callable[[], str], *, first: bool = False) -> None:
    """Set what an interrupt of the running command prints, or returns it; with ``first`` only where none is set."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and not (first and INTERRUPTED in ctx.meta):
        ctx.meta[INTERRUPTED] = text


def write_text(text: str) -> None:
    """Print a report on stdout. Characters that UTF-8 cannot encode are escaped, never an error."""
    line = text if text.endswith("\n") else text + "\n"
    try:
        sys.stdout.buffer.write(line.encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.flush()
    except OSError as error:
        raise type(error)(error.errno, error.strerror, "stdout") from error


def printable(text: str) -> str:
    """Return the text as one line without control characters, so that an untrusted name cannot steer the terminal.

    >>> printable("a" + chr(27) + "[2J" + chr(10) + "b")
    'a\\\\x1b[2J\\\\nb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
