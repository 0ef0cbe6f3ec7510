"""ParkedKV: the KV of sessions between their turns, on the device or in host memory, the least used given up first.

    turn ends --park--> device --pressure--> host memory --pressure--> dropped: the ids are kept elsewhere
    turn begins <--take-- device or host, as far as the ids agree
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.errors import PoolFull
from pltz.kv.pool.packed_session import PackedSession

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.kv.pool.block_pool import BlockPool


@dataclass(eq=False)
class _Parked:
    ids: NDArray[np.int32]  # of the KV, (tokens,)
    kv: PackedSession


class ParkedKV:
    """The KV of sessions that no turn runs in. The scheduler's thread uses it.

    ``most``: sessions on the device, whose last tokens lie beside the pool; four times as many in host memory.
    ``spills``, ``drops``, ``warms``: how many moved.
    """

    def __init__(self, pool: BlockPool, most: int) -> None:
        self.pool, self.most = pool, most
        self.spills = self.drops = self.warms = 0
        self._parked: OrderedDict[str, _Parked] = OrderedDict()  # the least recently used first
        pool.device.reclaimers.append(self._reclaim)  # after those of a tree of prefixes, which goes first

    def tiers(self) -> dict[str, str]:
        """Return "hot" or "warm" of each session that has KV. Any thread may call."""
        return {name: "warm" if one.kv.spilled else "hot" for name, one in self._parked.copy().items()}

    def park(self, name: str, ids: Sequence[int], kv: PackedSession) -> None:
        """Keep the KV of a session's ids, in exchange for what was parked of it."""
        self.drop(name)
        self._parked[name] = _Parked(np.asarray(ids[: kv.tokens], np.int32), kv)
        hot = [key for key, one in self._parked.items() if not one.kv.spilled]
        for key in hot[: max(len(hot) - self.most, 0)]:
            self._give_up(key)

    def take(self, name: str, ids: Sequence[int]) -> PackedSession | None:
        """Return the KV of the longest beginning of ``ids``, at most all but the last, that is parked; None for none.

        It holds blocks of its own: the parked KV stays, for a turn that is cancelled.
        """
        found = self._parked.get(name)
        if found is None:
            return None
        self._parked.move_to_end(name)
        if found.kv.spilled:
            try:
                found.kv.warm()
            except PoolFull:
                return None
            self.warms += 1
        count = min(len(found.ids), len(ids) - 1)
        other = np.flatnonzero(found.ids[:count] != np.asarray(ids[:count], np.int32))
        common = int(other[0]) if len(other) else count
        if not common:
            return None
        kv = found.kv.fork()
        kv.cut(common)
        return kv

    def drop(self, name: str) -> bool:
        """Forget the KV of a session. Returns whether there was any."""
        found = self._parked.pop(name, None)
        if found is None:
            return False
        found.kv.release()
        return True

    def close(self) -> None:
        """Forget all."""
        for name in list(self._parked):
            self.drop(name)

    def _give_up(self, name: str) -> None:
        """Move a session's KV to host memory, or drop it where there is no room."""
        one = self._parked[name]
        host = self.pool.host
        if host is not None and len(one.kv.blocks) <= host.blocks:
            warm = [key for key, other in self._parked.items() if other.kv.spilled]
            while warm and (host.free < len(one.kv.blocks) or len(warm) >= 4 * self.most):
                self.drop(warm.pop(0))
                self.drops += 1
            try:
                one.kv.spill()
            except PoolFull:
                pass
            else:
                self.spills += 1
                return
        self.drop(name)
        self.drops += 1

    def _reclaim(self, missing: int) -> bool:
        """Give up the session of the device that was used longest ago. Returns whether there was one.

        Others are asked again after each: it may have held the same blocks.
        """
        name = next((key for key, one in self._parked.items() if not one.kv.spilled), None)
        if name is not None:
            self._give_up(name)
        return name is not None
