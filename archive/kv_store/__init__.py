"""The KV of segments in memory and on local disk (hot), and the thaw that fills it from the archive.

store.py            HotStore: a trie of segments over a list of tiers
thawer.py           Thawer: turns archived sessions into caches
tier.py             the port of a tier; tiers of device and host memory
kv_block.py         the KV of one segment, cut from a cache and joined to one
target_tokens.py    the ids that a target is given for a tower
queued_prefill.py   the prefill queued behind a decoder on the GPU
disk_tier.py        the files of the disk tier (FORMAT.md)
eviction_policy.py  the choice of the segment that stays
lease.py            protection of segments in use
background_worker.py  work that nobody waits for: coding evicted blocks, exact KV after a small form
stage_timer.py      milliseconds by stage
"""

from pltz.archive.kv_store.store import HotStore
from pltz.archive.kv_store.thawer import Thawer, Wanted

__all__ = ["HotStore", "Thawer", "Wanted"]
