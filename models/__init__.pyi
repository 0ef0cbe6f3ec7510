"""The names that models offers to the rooms above the core and to everybody else, each from its home."""

from pltz.models.bundle.bridge import (
    SLOTS as SLOTS,
    Bridge as Bridge,
    TargetTokenizer as TargetTokenizer,
    fingerprint as fingerprint,
    slot_order as slot_order,
)
from pltz.models.bundle.bundle import (
    DEFAULT as DEFAULT,
    Bundle as Bundle,
    coder_of as coder_of,
    write_bundle as write_bundle,
)
from pltz.models.bundle.folder import publish as publish
from pltz.models.bundle.tokenizer import (
    CLASS as CLASS,
    SPECIALS as SPECIALS,
    SPLIT as SPLIT,
    BundleTokenizer as BundleTokenizer,
    Ids as Ids,
    byte_alphabet as byte_alphabet,
)
from pltz.models.session.session import (
    Kind as Kind,
    Session as Session,
    content_bytes as content_bytes,
    kind_of as kind_of,
)
from pltz.models.session.transcript import (
    LIST as LIST,
    MESSAGE as MESSAGE,
    ROLES as ROLES,
    conversation_span as conversation_span,
    to_tokens as to_tokens,
    to_tokens_many as to_tokens_many,
)
from pltz.models.target.cache import (
    cache_argument as cache_argument,
    cache_bytes as cache_bytes,
    cache_of as cache_of,
    is_plain as is_plain,
    pairs_of as pairs_of,
    share as share,
)
from pltz.models.target.checkpoint import (
    differing as differing,
    fingerprint_of as fingerprint_of,
    positions_of as positions_of,
    resolve as resolve,
    tokenizer_json_of as tokenizer_json_of,
)
from pltz.models.target.target import (
    ControlTokenWarning as ControlTokenWarning,
    Target as Target,
    as_seen_by as as_seen_by,
)
