"""The public names, each from its home. `pltz/__init__.py` loads a name from where this file imports it."""

from pltz.api import (
    compress as compress,
    decompress as decompress,
    open as open,
)
from pltz.archive.archive import (
    Archive as Archive,
    ArchivedSession as ArchivedSession,
    SessionVersion as SessionVersion,
)
from pltz.archive.encryption.keys import KeySource as KeySource, Secret as Secret
from pltz.archive.errors import (
    ArchiveError as ArchiveError,
    Erased as Erased,
    Fenced as Fenced,
    ForeignPack as ForeignPack,
    FullError as FullError,
    KeyMismatch as KeyMismatch,
    LostError as LostError,
    ManifestLost as ManifestLost,
    MisplacedPack as MisplacedPack,
    MissingKeys as MissingKeys,
    MissingPack as MissingPack,
    NotFound as NotFound,
    OnHold as OnHold,
    Outdated as Outdated,
    RolledBack as RolledBack,
    StaysErased as StaysErased,
    StoreError as StoreError,
    UnreadableError as UnreadableError,
    WriterFailed as WriterFailed,
    WrongClock as WrongClock,
)
from pltz.archive.search import SearchHit as SearchHit
from pltz.archive.writing.put_request import (
    PutReceipt as PutReceipt,
    PutRequest as PutRequest,
)
from pltz.coding.codec import Codec as Codec
from pltz.coding.session_file import SessionFile as SessionFile
from pltz.datasets.loaders import sample_sessions as sample_sessions
from pltz.kv.errors import (
    MemoryFailed as MemoryFailed,
    MemoryMismatch as MemoryMismatch,
    PoolFull as PoolFull,
)
from pltz.kv.kv_forms import kv_forms as kv_forms
from pltz.kv.memory.agent_memory import AgentMemory as AgentMemory
from pltz.kv.pool.batch_cache import BatchKVCache as BatchKVCache
from pltz.kv.pool.block_pool import BlockPool as BlockPool
from pltz.kv.pool.packed_session import PackedSession as PackedSession
from pltz.kv.pool.page_attention import use_pages as use_pages
from pltz.kv.store.snapshots import Snapshots as Snapshots
from pltz.kv.store.store import KVStore as KVStore
from pltz.kv.thaw.file import thaw as thaw
from pltz.kv.thaw.thawed import Thawed as Thawed
from pltz.kv.thaw.thawer import (
    Thawer as Thawer,
    Wanted as Wanted,
)
from pltz.models.bundle.bundle import Bundle as Bundle
from pltz.models.session.session import Session as Session
from pltz.models.target.checkpoint import fingerprint_of as fingerprint_of
from pltz.models.target.target import Target as Target
from pltz.plt_codec.errors import (
    BundleMismatch as BundleMismatch,
    ContentError as ContentError,
    CorruptError as CorruptError,
    FormatError as FormatError,
    LimitError as LimitError,
    MismatchError as MismatchError,
    ModelError as ModelError,
    OpaqueContentError as OpaqueContentError,
    PltzError as PltzError,
    TargetMismatch as TargetMismatch,
    TokenizerMismatch as TokenizerMismatch,
    UsageError as UsageError,
    VersionError as VersionError,
)
from pltz.serving.engines.llama_server import LlamaServer as LlamaServer
from pltz.serving.engines.slot_archiver import SlotArchiver as SlotArchiver
from pltz.serving.engines.vllm_request import VllmEngine as VllmEngine
from pltz.serving.eviction.eviction import EvictionRequest as EvictionRequest
from pltz.serving.eviction.hook import EvictionHook as EvictionHook
from pltz.serving.eviction.worker import drain as drain
from pltz.serving.live.store import LiveStore as LiveStore

__all__: list[str]  # noqa: PYI035  (`__init__.py` reads this file for it)
__version__: str
