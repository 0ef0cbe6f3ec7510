"""Author: who changes an archive, and why. Holds and the audit have it.

    Author.of("alice", "case 7")        Author.of(None, None)  -->  of PLTZ_ACTOR, else the system's user and host
"""

from __future__ import annotations

import getpass
import os
import socket
from typing import NamedTuple

from pltz.plt_codec.errors import UsageError

ACTOR = "PLTZ_ACTOR"  # environment variable
MOST = 1024  # bytes of an actor's name, and of a reason


class Author(NamedTuple):
    """A name of who makes changes, and why; without a reason where none was given."""

    actor: str
    reason: str = ""

    @classmethod
    def of(cls, actor: str | None, reason: str | None) -> Author:
        """Return an author; without a name that of the environment, else the system's user and host.

        Raises UsageError for what is too long.
        """
        for given in (actor or os.environ.get(ACTOR, ""), reason or ""):
            if len(given.encode("utf-8", "surrogatepass")) > MOST:
                raise UsageError(f"expected a name of who acts, and a reason, of at most {MOST} bytes each")
        return cls(actor or os.environ.get(ACTOR) or _of_system(), reason or "")


def _of_system() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
