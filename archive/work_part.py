"""WorkPart: one of M parts of the work on an archive, by name. Who does a part needs to know nothing of the others.

>>> parts = [WorkPart(number, 3) for number in (1, 2, 3)]
>>> [str(part) for part in parts if part.has(b"a pack")]
['1/3']
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import digest

MOST = 1 << 20  # parts


@dataclass(frozen=True)
class WorkPart:
    """The part ``number`` of ``of`` parts, from 1 on. Every name is in one part, whatever other names there are."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> WorkPart:
        """Return the part that is written as N/M. Raises UsageError."""
        match = re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", text, re.ASCII)
        number, of = map(int, match.groups()) if match else (0, 0)
        if not 1 <= number <= of <= MOST:
            raise UsageError(f"expected a part as N/M, with N from 1 to M and M at most {MOST}, found {text!r}")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, name: bytes) -> bool:
        """Return whether what has this name is in this part."""
        return self.of == 1 or int.from_bytes(digest(b"pltz part", name)[:8], "big") % self.of == self.number - 1

    def has_session(self, tenant: str, name: str) -> bool:
        """Return whether the session of this name, with all its versions, is in this part."""
        return self.has(f"{len(tenant)}:{tenant}{name}".encode())
