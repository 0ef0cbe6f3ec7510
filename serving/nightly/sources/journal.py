"""The journal of the eviction hook as a source: evicted sessions that no worker has archived yet.

The journal has its own path into the archive (`pltz.serving.eviction.worker.drain`), which removes an entry only when
it is durable there. So one process drains it as a whole, and there are no single entries to look at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pltz.plt_codec import UsageError, digest
from pltz.serving.eviction.checked import Limits, Word
from pltz.serving.nightly.run_stats import RefusedSession, RunStats
from pltz.serving.nightly.sources.source import SourceShard, path_setting

if TYPE_CHECKING:
    from pltz.archive import Archive


@dataclass(frozen=True)
class JournalSource:
    """A journal at ``path``.

    ``max_seconds``: time to spend on it, 0 for no limit. ``wait``: seconds to wait for another worker.
    """

    name: Word
    path: str = path_setting()
    max_seconds: Annotated[int, Limits(0, 1 << 31)] = 0
    wait: Annotated[int, Limits(0, 1 << 31)] = 60
    kind = "journal"
    naming_keys = frozenset[str]()

    def shards(self, number: int) -> Iterator[SourceShard]:
        """Yield one shard for the whole journal. Raises UsageError where there is no such folder."""
        if not os.path.isdir(self.path):
            raise UsageError(f"expected the folder of a journal, found none at {self.path}")
        yield SourceShard(number, self.path, ())

    def drain(self, cold: Archive) -> RunStats:
        """Archive its entries. Refused ones are laid aside in the journal itself."""
        from pltz.serving.eviction import worker

        drained = worker.drain(self.path, cold, max_seconds=self.max_seconds or None, wait=self.wait)
        return self._tally(drained.as_fields())

    def _tally(self, done: Mapping[str, Any]) -> RunStats:
        """Return the result of a drain as a tally."""
        stored, unchanged = done["stored"], done["unchanged"]
        tally = RunStats(seen=done["entries"], frozen=stored + unchanged, unchanged=unchanged)
        tally.by_model = done["by_model"]
        tally.bytes = tally.bytes_seen = done["raw"]
        tally.tokens, tally.frozen_bytes = done["tokens"], done["frozen"]
        for tenant, name, reason in done["refused"]:
            facts = [self.name, "journal", name, tenant, "ContentError", reason, None]
            tally.refuse(RefusedSession(digest(b"pltz refused", repr(facts).encode()).hex(), *facts))
        tally.refused = done["rejected"]
        for _ in range(done["erased"]):
            tally.leave(self.name, "erased before", "a session that was erased from the archive")
        if done["busy"]:
            tally.failures.append(f"source {self.name!r}: another worker has the journal")
        if done["failure"]:
            tally.failures.append(f"source {self.name!r}: {done['failure']}")
        if done["damaged"]:
            tally.failures.append(f"source {self.name!r}: {done['damaged']} bytes are damaged, and laid aside")
        if done["lost"]:
            tally.failures.append(
                f"source {self.name!r}: {done['lost']} files of the journal are gone, see pltz hook status"
            )
        return tally
