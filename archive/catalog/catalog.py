"""The catalogue: one process's sight of an archive, in four parts.

    listing     which packs and indexes there are, and what is condemned
    lookup      where the record of a segment, session or version lies
    damage      the state of each pack, and what damage may hide
    holds       what may not be forgotten, freed or erased

The rule of freshness is `Catalog.look`. Every call that reads begins with it, so it sees all that any process had
acknowledged ``max_age`` seconds before, and with 0 all that was acknowledged before the call.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from pltz.archive.author import Author
from pltz.archive.catalog.damage import DamageReport
from pltz.archive.catalog.holds import Holds
from pltz.archive.catalog.listing import ATTEMPTS, Listing
from pltz.archive.catalog.lookup import RecordLookup
from pltz.archive.catalog.losses import Loss
from pltz.archive.catalog.problems import Problems
from pltz.archive.encryption.key_check import KeyCheck
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.encryption.keys import Encryption, LockedArchive, Plaintext
from pltz.archive.errors import Fenced, LostError, Outdated, WrongClock
from pltz.archive.format.audit import FORCED, KEY_SIZE, NOTE_OF, SEALED, AuditRecord, Verb
from pltz.archive.format.clock import DAY
from pltz.archive.format.manifest import Manifest
from pltz.archive.humanize import moment
from pltz.archive.storage.store import Store

T = TypeVar("T")

TOLD = 8  # sessions that a record names


class Catalog:
    """The catalogue of an archive, empty until the first `refresh`. ``keys``: None: it is one without encryption."""

    def __init__(self, store: Store, keys: Encryption | None = None) -> None:
        self.store = store
        self.keys = keys or Plaintext()
        self._keyring = self.keys if isinstance(self.keys, Keyring) else None
        self._key_check = self._keyring.key_check if self._keyring else None
        self.max_age = 0.0
        self.author = Author.of(None, None)
        self.force_time = False  # whether a person says that this clock is right
        self._held = 0  # calls that look as one
        self.problems = Problems()  # met so far
        self.listing = Listing(self.store, self.problems)
        self.lookup = RecordLookup(self.listing, self.keys, self.problems)
        self.damage = DamageReport(self.listing, self.lookup, self.problems)
        self.holds = Holds(self.listing, self.keys, self.record)
        self._read_at = -math.inf  # seconds of the monotonic clock when the last `refresh` began

    @property
    def key_check(self) -> KeyCheck | None:
        """Return the check of key files of a sealed archive, opened with its key or without; else None."""
        if self._key_check is None and self.keys.cipher:
            self._key_check = KeyCheck(self.store, self.listing.archive)
        return self._key_check

    def keyless(self, domain: bytes | None = None) -> dict[bytes, str]:
        """Return the domains that have records and lack keys, as far as names of files and reads so far tell.

        ``domain``: this one alone. The archive's own key is under the id of the archive. Raises StoreError.
        """
        if self.key_check is None:
            return {}
        met = self._keyring.unreadable if self._keyring else {}
        found = self.key_check.missing() | met
        return {one: what for one, what in found.items() if domain in (None, one)}

    def look(self, max_age: float | None = None) -> bool:
        """Read the changes that others made, unless they were read within ``max_age`` seconds; None: the catalogue's.

        Returns whether they were read. Keys are read in any case, so what was erased is refused at once.

        Raises:
            ManifestLost, RolledBack, StoreError, VersionError: as `Listing.follow`.
        """
        bound = self.max_age if max_age is None else max_age
        if self._held or time.monotonic() - self._read_at < bound:
            self._read(lambda: None)
            return False
        self.look_now()
        return True

    def look_now(self) -> None:
        """Read the changes that others made, as `look` does, whenever they were read before. Raises its errors."""
        begun = time.monotonic()
        self._read(self.listing.follow)
        self._read_at = begun

    def _read(self, look: Callable[[], None]) -> None:
        """Look between a refresh of the keys and one of their check, which takes the packs of this look."""
        if self._keyring:
            self._keyring.refresh()
        look()
        if self._key_check:
            listing = self.listing
            self._key_check.refresh(lambda: listing.packs)  # it lists none, and reads the tables of new ones

    @contextmanager
    def one_look(self, max_age: float | None = None) -> Iterator[None]:
        """Look once for all reads inside: they are parts of one call. Raises the errors of `look`."""
        self.look(max_age)
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def refresh(self) -> None:
        """Read the changes that others made, and tell by a listing of packs/ which packs are missing.

        Raises ManifestLost, RolledBack, StoreError, VersionError.
        """
        begun = time.monotonic()
        self._read(self.listing.read)
        self._read_at = begun

    def twice(self, work: Callable[[], T]) -> T:
        """Return the result of ``work`` by a stable listing, once more after a refresh where it lacks something.

        What is there may be under keys made since the last refresh.
        """
        try:
            return self.listing.stable(work)
        except LostError:
            self.refresh()
            return self.listing.stable(work)

    def decide(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which decides by one look and publishes what it decided.

        It is called again, after another look, where what it relied on is condemned or gone by then. Raises
        Fenced where that goes on, and the errors of ``work``.
        """
        for _ in range(ATTEMPTS - 1):
            with suppress(Outdated), self.one_look(0):
                try:
                    return work()
                except FileNotFoundError:  # a collector took a pack out; if none did, this tells that it is missing
                    self.refresh()
        try:
            with self.one_look(0):
                return work()
        except FileNotFoundError as exc:
            raise Fenced("a collector keeps moving what is relied on: nothing was acknowledged, try again") from exc

    def record(
        self, verb: Verb, number: int, sessions: Iterable[bytes] = (), *, flags: int = 0, **about: str
    ) -> AuditRecord:
        """Return the record of a change by this object's author, for `Listing.publish`.

        Args:
            number: of the versions or packs that it is about.
            sessions: their keys, of which the first are told. No name and nothing of a content is in a record.
            about: more, as JSON.
        """
        keys = dict.fromkeys(key[:KEY_SIZE] for key in sessions)
        note = {key: word for key, word in self.author._asdict().items() if word} | about
        locked = isinstance(self.keys, LockedArchive)
        flags |= SEALED * bool(self.keys.cipher and not locked) | FORCED * self.force_time
        data = json.dumps(note, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        data = self.keys.seal_note(data, NOTE_OF) if flags & SEALED else data
        return AuditRecord(self.store.now(), verb, number, data, flags, tuple(keys)[:TOLD])

    def want_clock(self) -> None:
        """Raise WrongClock where this machine's clock is more than a day behind the archive's last change."""
        clock, now = self.listing.present.clock, self.store.now()
        if clock.is_behind(now) and not self.force_time:
            raise WrongClock(
                f"this clock says {moment(now)}, and the archive was changed at {moment(clock.agreed)}: set the clock, "
                "or say that it is right (--force-time, from Python force_time=True); nothing was put"
            )

    def believed_time(self, *, note: bool = True) -> int:
        """Return the time by which ages count, in seconds since 1970, and let the manifest remember that it was asked.

        A clock that went ahead counts once a second look agrees, a day after the first. Raises StoreError,
        WriterFailed.
        """
        clock, now = self.listing.present.clock, self.store.now()
        seen = clock.seeing(now, forced=self.force_time)
        if note and seen != clock and (self.force_time or now > clock.agreed + DAY // 2):
            self.listing.publish(lambda base: replace(base, clock=base.clock.seeing(now, forced=self.force_time)))
        return seen.believed(now)

    def acknowledge(self, losses: Sequence[Loss] | None = None) -> list[Loss]:
        """Record that a person knows of losses (None: all) and return them; they are not reported any more.

        A look-up of a session that an acknowledged loss names still says so. Raises StoreError, WriterFailed.
        """
        self.refresh()
        known = self.damage.losses()
        chosen = known if losses is None else [loss for loss in known if loss in losses]
        now = self.store.now()

        def acknowledged(manifest: Manifest) -> Manifest:
            rows = {loss.pack: manifest.lost[loss.pack] for loss in chosen if loss.pack in manifest.lost}
            told = {pack: row._replace(acknowledged=row.acknowledged or now) for pack, row in rows.items()}
            return replace(manifest, lost={**manifest.lost, **told})

        self.listing.publish(acknowledged)
        return chosen
