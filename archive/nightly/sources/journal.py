"""The journal of the eviction hook as a source: whatever a serving process evicted and no worker has archived yet.

The journal has its own way into the archive (`pltz.archive.eviction.worker.drain`), which takes an entry out only when it is durable
there; so it is drained as a whole, by one process, and has no entries to look at one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pltz.archive.format.ids import digest
from pltz.archive.nightly.run_stats import Refused, Tally
from pltz.archive.nightly.sources.source import Shard
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.limits import ZSTD_ABOVE

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import Secret
    from pltz.models.bundle.bundle import Bundle
    from pltz.plt_codec.lanes import LayoutName


@dataclass(frozen=True)
class JournalSource:
    """``path``: the journal's folder; ``max_seconds``: to spend on it, 0 is no limit; ``wait``: for another worker to be done with it."""

    name: str
    path: str
    max_seconds: int = 0
    wait: int = 60
    kind = "journal"

    def shards(self, number: int) -> Iterator[Shard]:
        """One, of all that is there. Raises UsageError where there is no such folder."""
        if not os.path.isdir(self.path):
            raise UsageError(f"expected the folder of a journal, found none at {self.path}")
        yield Shard(number, self.path, ())

    def drain(
        self,
        archive: str,
        bundle: Bundle,
        key: Secret | None,
        layout: LayoutName = "default",
        threads: int | None = None,
        zstd_above: int | None = ZSTD_ABOVE,
    ) -> Tally:
        """Archive what is in it. What was refused lies aside in the journal itself."""
        from pltz.archive.eviction import worker

        limit = self.max_seconds or None
        done = worker.drain(
            self.path,
            archive,
            bundle=bundle,
            key=key,
            threads=threads,
            layout=layout,
            zstd_above=zstd_above,
            max_seconds=limit,
            wait=self.wait,
        )
        return self._tally(done.as_fields())

    def _tally(self, done: Mapping[str, Any]) -> Tally:
        """What a drain says, as counts of ours."""
        stored, unchanged = done["stored"], done["unchanged"]
        tally = Tally(seen=done["entries"], frozen=stored + unchanged, unchanged=unchanged)
        tally.by_model = stored - done["by_zstd"]
        tally.bytes = tally.bytes_seen = done["raw"]
        tally.tokens, tally.frozen_bytes = done["tokens"], done["frozen"]
        for tenant, name, reason in done["refused"]:
            facts = [self.name, "journal", name, tenant, "ContentError", reason, None]
            tally.refuse(Refused(digest(b"pltz refused", repr(facts).encode()).hex(), *facts))
        tally.refused = done["rejected"]
        if done["busy"]:
            tally.failures.append(f"source {self.name!r}: another worker has the journal")
        if done["failure"]:
            tally.failures.append(f"source {self.name!r}: {done['failure']}")
        if done["damaged"]:
            tally.failures.append(
                f"source {self.name!r}: {done['damaged']} bytes are damaged, and laid aside"
            )
        return tally
