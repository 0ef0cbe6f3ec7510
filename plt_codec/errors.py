"""The exceptions that pltz raises on purpose, in one tree.

    PltzError                  2   root: catch this to catch everything pltz says
    ├── UsageError             2   the call is wrong: bad option, unknown bundle, missing file
    ├── FormatError            3   these bytes are not a valid .pltz or bundle file
    │   ├── CorruptError       3   damaged: checksum, truncation, impossible count
    │   └── VersionError       3   written by a newer format or numeric contract
    ├── MismatchError          4   the file is right, its partner is wrong
    │   ├── BundleMismatch     4   frozen with another decoder bundle
    │   ├── TokenizerMismatch  4   the ids belong to another tokenizer
    │   └── TargetMismatch     4   frozen for other target weights
    ├── ContentError           5   this content cannot be coded
    │   ├── OpaqueContentError 5   an image, audio or file part: refused by name
    │   └── LimitError         5   over a limit of one session (limits.py): bytes, values, depth
    └── ModelError             6   a bundle or target cannot be loaded or used

The number is the exit code of the command line. A message says what was expected, what was found and what to
do. Foreign errors are wrapped with ``raise ... from exc``.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PltzError(Exception):
    """Root of every error pltz raises on purpose."""

    exit_code = 2


class UsageError(PltzError):
    """The call itself is wrong: a bad option, an unknown bundle, a missing file."""


class FormatError(PltzError):
    """The bytes are not a valid .pltz or bundle file."""

    exit_code = 3


class CorruptError(FormatError):
    """The bytes are damaged: a checksum, a length or a count does not hold."""


class VersionError(FormatError):
    """The bytes were written by a newer format or numeric contract than this build knows."""


class MismatchError(PltzError):
    """The file is sound but does not belong to the given partner."""

    exit_code = 4


class BundleMismatch(MismatchError):
    """The session was frozen with another decoder bundle."""


class TokenizerMismatch(MismatchError):
    """The token ids belong to another tokenizer."""


class TargetMismatch(MismatchError):
    """The session was frozen for other target weights."""


class ContentError(PltzError):
    """The content cannot be coded as a session."""

    exit_code = 5


class OpaqueContentError(ContentError):
    """A part that is not text (image, audio, file) stands where text was expected."""


class LimitError(ContentError):
    """The session is over a limit: too many bytes, ids or values, or nested too deep (docs/limits.md)."""


class ModelError(PltzError):
    """A bundle or a target model cannot be loaded or used."""

    exit_code = 6


@contextmanager
def refusing(what: str, way_out: str = "read it as a text (--format text), and report this") -> Iterator[None]:
    """Make whatever code raises over foreign data a refusal of that data alone, as `refusal`; others pass.

    >>> with refusing("a.json", "mend it"):
    ...     raise KeyError("id")
    Traceback (most recent call last):
    pltz.plt_codec.errors.ContentError: a.json: cannot be read (KeyError: 'id'): mend it
    """
    try:
        yield
    except Exception as exc:
        if (error := refusal(exc, what, way_out)) is exc:
            raise
        raise error from exc


def refusal(error: Exception, what: str, way_out: str) -> Exception:
    """Return the ContentError for an error that code raised over foreign data.

    Errors of pltz and of the machine, and warnings are returned as they are. ``what``: names the data, for the message;
    ``way_out``: says what to do.
    """
    if isinstance(error, PltzError | OSError | MemoryError | Warning):
        return error
    return ContentError(f"{what}: cannot be read ({type(error).__name__}: {str(error)[:200]}): {way_out}")
