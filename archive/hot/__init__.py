"""Hot: the KV of segments in memory and on local disk, and the thaw that fills it from the archive.

store.py     HotStore: a trie of segments over device, host and disk       thawer.py   Thawer: cold sessions into caches
slab.py      KV of one segment, cut from a cache and joined to one         seen.py      the ids a target sees of a tower
warm.py      the files of the disk tier (FORMAT.md)                        laps.py      milliseconds by stage
lindy.py     which segment stays                                           stats.py     what a store says of itself
lease.py     what is in use stays
"""

from pltz.archive.hot.store import HotStore
from pltz.archive.hot.thawer import Thawer, Wanted

__all__ = ["HotStore", "Thawer", "Wanted"]
