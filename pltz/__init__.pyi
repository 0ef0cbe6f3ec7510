"""The public names, each from its home. `pltz/__init__.py` loads a name from where this file imports it."""

from pltz.api import (
    compress as compress,
)
from pltz.api import (
    decompress as decompress,
)
from pltz.api import (
    open as open,
)
from pltz.archive.archive import (
    Archive as Archive,
)
from pltz.archive.archive import (
    ArchivedSession as ArchivedSession,
)
from pltz.archive.archive import (
    SessionVersion as SessionVersion,
)
from pltz.archive.encryption.keys import Secret as Secret
from pltz.archive.errors import (
    ArchiveError as ArchiveError,
)
from pltz.archive.errors import (
    Erased as Erased,
)
from pltz.archive.errors import (
    Fenced as Fenced,
)
from pltz.archive.errors import (
    ForeignPack as ForeignPack,
)
from pltz.archive.errors import (
    FullError as FullError,
)
from pltz.archive.errors import (
    KeyMismatch as KeyMismatch,
)
from pltz.archive.errors import (
    LostError as LostError,
)
from pltz.archive.errors import (
    MisplacedPack as MisplacedPack,
)
from pltz.archive.errors import (
    MissingKeys as MissingKeys,
)
from pltz.archive.errors import (
    MissingPack as MissingPack,
)
from pltz.archive.errors import (
    NotFound as NotFound,
)
from pltz.archive.errors import (
    Outdated as Outdated,
)
from pltz.archive.errors import (
    RolledBack as RolledBack,
)
from pltz.archive.errors import (
    StoreError as StoreError,
)
from pltz.archive.errors import (
    UnreadableError as UnreadableError,
)
from pltz.archive.errors import (
    WriterFailed as WriterFailed,
)
from pltz.archive.writing.put_request import (
    PutReceipt as PutReceipt,
)
from pltz.archive.writing.put_request import (
    PutRequest as PutRequest,
)
from pltz.coding.codec import Codec as Codec
from pltz.coding.session_file import SessionFile as SessionFile
from pltz.datasets.loaders import sample_sessions as sample_sessions
from pltz.kv.errors import (
    MemoryFailed as MemoryFailed,
)
from pltz.kv.errors import (
    MemoryMismatch as MemoryMismatch,
)
from pltz.kv.errors import (
    PoolFull as PoolFull,
)
from pltz.kv.kv_forms import kv_forms as kv_forms
from pltz.kv.memory.agent_memory import AgentMemory as AgentMemory
from pltz.kv.pool.batch_cache import BatchKVCache as BatchKVCache
from pltz.kv.pool.block_pool import BlockPool as BlockPool
from pltz.kv.pool.packed_session import PackedSession as PackedSession
from pltz.kv.pool.page_attention import use_pages as use_pages
from pltz.kv.pool.prefix_tree import PrefixTree as PrefixTree
from pltz.kv.store.store import HotStore as HotStore
from pltz.kv.thaw.file import thaw as thaw
from pltz.kv.thaw.thawed import Thawed as Thawed
from pltz.kv.thaw.thawer import (
    Thawer as Thawer,
)
from pltz.kv.thaw.thawer import (
    Wanted as Wanted,
)
from pltz.models.bundle.bundle import Bundle as Bundle
from pltz.models.session.session import Session as Session
from pltz.models.target.checkpoint import fingerprint_of as fingerprint_of
from pltz.models.target.target import Target as Target
from pltz.plt_codec.errors import (
    BundleMismatch as BundleMismatch,
)
from pltz.plt_codec.errors import (
    ContentError as ContentError,
)
from pltz.plt_codec.errors import (
    CorruptError as CorruptError,
)
from pltz.plt_codec.errors import (
    FormatError as FormatError,
)
from pltz.plt_codec.errors import (
    LimitError as LimitError,
)
from pltz.plt_codec.errors import (
    MismatchError as MismatchError,
)
from pltz.plt_codec.errors import (
    ModelError as ModelError,
)
from pltz.plt_codec.errors import (
    OpaqueContentError as OpaqueContentError,
)
from pltz.plt_codec.errors import (
    PltzError as PltzError,
)
from pltz.plt_codec.errors import (
    TargetMismatch as TargetMismatch,
)
from pltz.plt_codec.errors import (
    TokenizerMismatch as TokenizerMismatch,
)
from pltz.plt_codec.errors import (
    UsageError as UsageError,
)
from pltz.plt_codec.errors import (
    VersionError as VersionError,
)
from pltz.serving.engines.llama_server import LlamaServer as LlamaServer
from pltz.serving.engines.slot_archiver import SlotArchiver as SlotArchiver
from pltz.serving.engines.vllm_request import VllmEngine as VllmEngine
from pltz.serving.eviction.eviction import EvictionRequest as EvictionRequest
from pltz.serving.eviction.hook import EvictionHook as EvictionHook
from pltz.serving.eviction.worker import drain as drain

__all__: list[str]  # noqa: PYI035  (`__init__.py` reads this file for it)
__version__: str
