"""The names that archive offers to the rooms above the core and to everybody else, each from its home."""

from pltz.archive.archive import Archive as Archive
from pltz.archive.catalog.catalog import Catalog as Catalog
from pltz.archive.catalog.chain import MAX_SEGMENTS as MAX_SEGMENTS, KnownSegment as KnownSegment
from pltz.archive.catalog.lookup import (
    Version as Version,
    VersionName as VersionName,
    as_sessions as as_sessions,
)
from pltz.archive.catalog.reader import SessionReader as SessionReader, Tower as Tower
from pltz.archive.catalog.stat import disk_bytes as disk_bytes, stat_of as stat_of
from pltz.archive.encryption.keys import KeySource as KeySource, Secret as Secret
from pltz.archive.errors import (
    ArchiveError as ArchiveError,
    Erased as Erased,
    Fenced as Fenced,
    LostError as LostError,
    NotFound as NotFound,
    OnHold as OnHold,
    StaysErased as StaysErased,
    StoreError as StoreError,
    is_full as is_full,
    reason as reason,
)
from pltz.archive.format.ids import (
    MAX_TOKENS as MAX_TOKENS,
    NO_SEGMENT as NO_SEGMENT,
    SALTED as SALTED,
    TENANT as TENANT,
    Tokens as Tokens,
    target_of as target_of,
    tenant_of as tenant_of,
)
from pltz.archive.format.object_names import FOLDERS as FOLDERS, SETTINGS as SETTINGS
from pltz.archive.format.record import (
    MAX_NAME as MAX_NAME,
    MAX_TAGS as MAX_TAGS,
    RUN as RUN,
    TICK_BITS as TICK_BITS,
    ContentFacts as ContentFacts,
    check_part as check_part,
    pack_tags as pack_tags,
    unpack_tags as unpack_tags,
)
from pltz.archive.format.settings import MAX_SIZE as MAX_SIZE, Settings as Settings
from pltz.archive.humanize import (
    counted as counted,
    duration as duration,
    folder_of as folder_of,
    moment as moment,
    size as size,
)
from pltz.archive.opener import OpenArchive as OpenArchive
from pltz.archive.retention import Policy as Policy, expired as expired, seconds as seconds
from pltz.archive.search import SearchHit as SearchHit, SearchQuery as SearchQuery, last_of as last_of
from pltz.archive.storage.disk import Disk as Disk, OsDisk as OsDisk
from pltz.archive.storage.store import DirectoryStore as DirectoryStore
from pltz.archive.version_sizes import method_of as method_of, tokens_of as tokens_of
from pltz.archive.work_part import WorkPart as WorkPart
from pltz.archive.writing.content_facts import facts_of as facts_of
from pltz.archive.writing.put_request import PutReceipt as PutReceipt, PutRequest as PutRequest
from pltz.archive.writing.segments import RecentTowers as RecentTowers, VerifiedSegments as VerifiedSegments
