"""The names that plt_codec offers to the rooms above the core and to everybody else, each from its home."""

from pltz.plt_codec.child_python import command as command, environment as environment
from pltz.plt_codec.container.file import Reader as Reader
from pltz.plt_codec.container.frame import is_bytewise as is_bytewise
from pltz.plt_codec.engines.cuda import device as device
from pltz.plt_codec.errors import (
    BundleMismatch as BundleMismatch,
    ContentError as ContentError,
    CorruptError as CorruptError,
    FormatError as FormatError,
    MismatchError as MismatchError,
    ModelError as ModelError,
    OpaqueContentError as OpaqueContentError,
    PltzError as PltzError,
    TargetMismatch as TargetMismatch,
    TokenizerMismatch as TokenizerMismatch,
    UsageError as UsageError,
    VersionError as VersionError,
    refusing as refusing,
)
from pltz.plt_codec.extras import need as need
from pltz.plt_codec.identity import MAX_POSITION as MAX_POSITION, NONE as NONE, SIZE as SIZE, digest as digest
from pltz.plt_codec.lanes import LANE_MARK as LANE_MARK, LayoutName as LayoutName, TokenBlock as TokenBlock
from pltz.plt_codec.limits import MAX_BYTES as MAX_BYTES, MAX_IDS as MAX_IDS, ZSTD_ABOVE as ZSTD_ABOVE
from pltz.plt_codec.named_files import (
    MAX_TOKENIZER as MAX_TOKENIZER,
    named_file as named_file,
    secret_file as secret_file,
)
from pltz.plt_codec.varint import read_varint as read_varint, write_varint as write_varint
from pltz.plt_codec.versions import Readers as Readers, number_in as number_in
from pltz.plt_codec.weights import (
    CLASS as CLASS,
    Shape as Shape,
    Weights as Weights,
    act_table as act_table,
    gains as gains,
    gated_gains as gated_gains,
    tables as tables,
)
from pltz.plt_codec.zstd import Fallback as Fallback
