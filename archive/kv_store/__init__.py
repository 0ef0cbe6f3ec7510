"""Hot: the KV of segments in memory and on local disk, and the thaw that fills it from the archive.

store.py     HotStore: a trie of segments over device, host and disk       thawer.py   Thawer: cold sessions into caches
kv_block.py      KV of one segment, cut from a cache and joined to one         target_tokens.py      the ids a target sees of a tower
disk_tier.py      the files of the disk tier (FORMAT.md)                        stage_timer.py      milliseconds by stage
eviction_policy.py     which segment stays                                           stats.py     what a store says of itself
lease.py     what is in use stays
"""

from pltz.archive.kv_store.store import HotStore
from pltz.archive.kv_store.thawer import Thawer, Wanted

__all__ = ["HotStore", "Thawer", "Wanted"]
