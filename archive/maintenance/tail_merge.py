"""TailMerger: join the last turns of sessions that grow, put after put, so that none is read turn by turn.

    prompt <- turn 1 <- [turns 2 to 20] <- turn 21 <- turn 22 <- turn 23      after a put of turn 24:
    prompt <- turn 1 <- [turns 2 to 20] <- [turns 21 to 24]                   or one run of 2 to 24, if it is short

A session of many turns has few records so, and each token is coded anew a few times at most: a record grows by half or
more whenever it is joined, and one of a block of tokens is left as it is, the new one too. A put takes at most `MOST`
tokens and those of one more record, however many turns were put without joining. The rest is as in `merge`: a run is
decoded and compared before it is put, its versions are looked up afterwards, and what it replaces stays until
`collect`.

Only records are joined that puts of this session made, as their session's name tells, so that no other session is
looked at. A put that forks from inside such a run is read through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import KnownSegment
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.recent_towers import Segments
from pltz.archive.errors import ArchiveError
from pltz.archive.format.context import RUN, WITHIN
from pltz.archive.format.ids import LEAF, TENANT
from pltz.archive.format.run import MAX_RUN, Run, unpack_run
from pltz.archive.maintenance.merge import Merger, PlannedRun, encoded
from pltz.archive.writing.new_session import CommitReceipt
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.codec import BytesCodec
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.errors import PltzError
from pltz.plt_codec.identity import NONE

FEW = 256  # tokens below which nothing is joined: they are decoded in some ms, and a run would take more bytes
LEAST = 4  # records joined at once, at least
SHARE = 2  # a record is joined with those behind it where it has at most so many times their tokens
ENOUGH = 4096  # tokens of a record that is left as it is: a block is decoded in as many steps as the next one
MOST = 4 * ENOUGH  # tokens from which no more records are joined by one put, so that it takes no longer


class TailMerger:
    """Joins turns for one writer, which remembers the towers that it put.

    Args:
        few: tokens below which nothing is joined; None: `FEW`.
    """

    def __init__(
        self,
        catalog: Catalog,
        writer: ArchiveWriter,
        codecs: CodecRegistry,
        indexes: IndexKeeper,
        *,
        few: int | None = None,
    ) -> None:
        self._catalog, self._writer, self._indexes = catalog, writer, indexes
        self._merger, self._few = Merger(catalog, writer, codecs, indexes), FEW if few is None else few

    def after(self, receipts: Sequence[CommitReceipt]) -> int:
        """Join the last turns of the sessions of a commit where that is due, and return how many were.

        The commit is durable whatever happens here. Any error is noted as a problem, also one of a codec or of memory:
        whoever put would take it for one of the put. The next put of a session tries again.
        """
        try:
            stable = self._catalog.listing.stable
            runs = [run for r in receipts if self._tail(r) and (run := stable(partial(self._planned, r)))]
            runs = self._merger.put(runs) if runs else []
            if runs:
                self._indexes.write_if_due()
        except Exception as exc:  # noqa: BLE001  # the put is acknowledged
            what = str(exc) if isinstance(exc, PltzError) else f"{type(exc).__name__}: {exc}"
            self._catalog.damage.note("merge", "", f"turns were not joined: {what}")
            return 0
        return len(runs)

    def _tail(self, receipt: CommitReceipt) -> Segments:
        """Return the segments to join, (id, tokens of shape (t,)), the leaf last; none where that is not due.

        Nothing is read: of the older records only those count that the put has seen.
        """
        coded = receipt.codec.tokenizer != BytesCodec.tokenizer
        tower = self._writer.recent.get(receipt.leaf)
        if receipt.version < LEAST or receipt.unchanged or receipt.new != 1 or not coded or not tower:
            return []
        records = self._records(receipt)
        begin, joined, total = len(tower) - 1, 1, len(tower[-1][1])
        if total >= ENOUGH:
            return []
        while begin and total < MOST and (item := records.get(tower[begin - 1][0])):
            size = item.record.tokens
            count = len(unpack_run(item.record).lengths) if item.context.mode & RUN else 1
            whole = count <= begin and sum(len(tokens) for _, tokens in tower[begin - count : begin]) == size
            if size > SHARE * total or size >= ENOUGH or not whole or len(tower) - begin + count > MAX_RUN:
                break
            begin, joined, total = begin - count, joined + 1, total + size
        return tower[begin:] if joined >= LEAST and total >= self._few else []

    def _records(self, receipt: CommitReceipt) -> dict[bytes, Found]:
        """Return the records that have segments together with versions of a session, by segment, a run before others.

        A put of the session made each of them.
        """
        domain = self._catalog.keys.domain(TENANT, receipt.tenant)
        key = self._catalog.keys.session_key(domain, receipt.name)
        found: dict[bytes, Found] = {}
        for item in self._catalog.lookup.seen_records(key):
            record, context = item.record, item.context
            coded = (context.tokenizer, context.bundle, context.contract)
            codec = receipt.codec
            if record.id is None or context.mode == WITHIN:
                continue
            if context.domain != domain or coded != (codec.tokenizer, codec.bundle_id, codec.contract):
                continue
            other = found.get(record.id)
            if other is None or other.record.tokens < record.tokens:
                found[record.id] = item
        return found

    def _planned(self, receipt: CommitReceipt) -> PlannedRun | None:
        """Return the run that joins the last turns of a session, proved to decode; None where it must stay as it is."""
        keys, tower = self._catalog.keys, self._writer.recent.get(receipt.leaf) or []
        if not (tail := self._tail(receipt)):
            return None
        history = self._catalog.lookup.versions(keys.domain(TENANT, receipt.tenant), receipt.name)
        staying = [version for version in history if not version.forgotten]
        if not staying or staying[-1].id != receipt.id or staying[-1].lacks or any(v.late or v.hidden for v in staying):
            return None
        like = self._catalog.lookup.head(staying[-1].location)
        names = [name for name, _ in tail]
        if like.record.id != receipt.leaf or any(keys.doomed(like.context, name) for name in names):
            return None
        begin = len(tower) - len(tail)
        above, parent = tower[:begin], tower[begin - 1][0] if begin else NONE
        nothing = np.zeros(0, np.int64)
        tokens = np.concatenate([nothing, *(part for _, part in tail)])
        mode, data = encoded(receipt.codec, tokens, np.concatenate([nothing, *(part for _, part in above)]))
        # the versions that end in the run
        places = {name: number for number, (name, _) in enumerate(tower)}
        towers: dict[bytes, Segments] = {}
        for version in staying:
            end = places.get(version.leaf, -1) + 1 - version.lacks
            if end > begin and tower[end - 1][0][:LEAF] == version.leaf_prefix:
                towers[version.id] = tower[:end]
        inside = [version for version in staying if version.id in towers]
        content = Run([len(part) for _, part in tail], [], data)
        rows, _ = self._merger.rows(inside, towers, names, parent, content, mode, like.context)
        if unpack_run(rows[0][1])[::2] != content[::2]:
            raise ArchiveError("a run just made does not read back: nothing was written")
        # its tokens are proved by now, so only its versions are looked up once it is put
        path = [NONE, *(name for name, _ in tower)]
        known = {name: KnownSegment(up, part) for up, (name, part) in zip(path, tower, strict=False)}
        own = [(version, towers[version.id]) for version in inside]
        return PlannedRun(rows, own, len(names), len(tokens), known=known)
