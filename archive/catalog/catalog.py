"""The catalogue: one process's sight of an archive, in three parts.

    listing     which packs, indexes and plans there are
    lookup      where the record of a segment, session or version lies
    damage      the state of each pack, and what damage may hide
"""

from __future__ import annotations

from collections.abc import Iterable

from pltz.archive.catalog.damage import DamageReport
from pltz.archive.catalog.ledger import PackLedger
from pltz.archive.catalog.listing import Listing
from pltz.archive.catalog.lookup import RecordLookup
from pltz.archive.catalog.problems import Problems
from pltz.archive.encryption.keys import Encryption, Plaintext
from pltz.archive.storage.store import Store


class Catalog:
    """The catalogue of an archive, empty until the first `refresh`.

    Args:
        keys: None stands for an archive without encryption.
        unused: digests, in hex, of index files that are skipped.
    """

    def __init__(self, store: Store, keys: Encryption | None = None, unused: Iterable[str] = ()) -> None:
        problems = Problems()
        self.store = store
        self.keys = keys or Plaintext()
        self.ledger = PackLedger(store)
        self.listing = Listing(store, self.ledger, problems, unused)
        self.lookup = RecordLookup(self.listing, self.keys, problems)
        self.damage = DamageReport(self.listing, self.lookup, problems)

    def refresh(self) -> None:
        """Read the changes that others made.

        Raises:
            StoreError: the store failed.
            ArchiveError: a plan is damaged.
        """
        self.listing.read_plans()
        self.keys.refresh()
        self.listing.read()
