"""The names that coding offers to the rooms above the core and to everybody else, each from its home."""

from pltz.coding.codec import Codec as Codec
from pltz.coding.codecs.bridged import BridgedCodec as BridgedCodec
from pltz.coding.codecs.bundle_codecs import codecs_of as codecs_of
from pltz.coding.codecs.codec import BytesCodec as BytesCodec
from pltz.coding.host_work import HostWork as HostWork
from pltz.coding.partners import (
    DEFAULT_TARGET as DEFAULT_TARGET,
    Path_ as Path_,
    as_target as as_target,
    bridge_between as bridge_between,
)
from pltz.coding.session_file import SessionFile as SessionFile
from pltz.coding.workers import Workers as Workers, helpers as helpers
