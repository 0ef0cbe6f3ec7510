"""EvictionRequest: the argument of `on_evict`, and the journal's entry that the flusher makes of it.

In the serving loop ids are copied, and nothing else: `held`. A list is kept as a tuple of the same objects, and checked
in the flusher (`entry_of`). Bytes and tuples are immutable and kept as they are. A copy must not release the GIL, since
taking it back may wait 5 ms: `ndarray.copy` does, `tobytes` does not.
"""

from __future__ import annotations

import operator
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from pltz.archive import MAX_NAME, SALTED, Tokens, target_of, tenant_of
from pltz.plt_codec import MAX_IDS, UsageError
from pltz.serving.eviction.journal.entry import MAX_PREFIXES, JournalEntry

TUPLE_ITEM = 36  # bytes per id of a Python list that is kept
PIECE = 4096  # ids converted to an array at a time, 20 us; the serving loop may run between pieces
PAUSE = 5e-5  # seconds


class EvictionRefused(Exception):
    """An eviction that is not accepted.

    ``reason``: one of a few words to count by. ``why``: a longer explanation.
    """

    def __init__(self, reason: str, why: str = "") -> None:
        super().__init__(reason)
        self.reason, self.why = reason, why


class EvictionRequest(NamedTuple):
    """A session whose KV cache is evicted. Making one checks nothing and raises nothing.

    Immutable: any thread may use it.

    Args:
        session: its name in the archive. The same name again is its next version.
        token_ids: all tokens in the KV and the last one sampled, (T,). A list, tuple, numpy array or CPU
            torch tensor, or bytes, 4 per id, little-endian. Copied by `on_evict`.
        salt: under which its KV was shared (vLLM's ``cache_salt``). A digest is kept, see `ids.tenant_of`.
        prefixes: token counts at which shared beginnings end, such as a system prompt. They are hints: those
            that do not fit are left out.
        base: name under which the first prefix is shared with all tenants. None shares it within the tenant.
        parent: session that this one was forked from.
        target: fingerprint of the weights, where it differs from the hook's, 16 bytes.
        adapter: None, its name, or 16 bytes that name its weights. True or "" means an unnamed adapter, which
            is refused.
        multimodal, has_embeds: the KV holds more than tokens (images, prompt embeddings), which is refused.
        time: seconds since 1970, None for now.
    """

    session: str
    token_ids: Any
    tenant: str = "default"
    salt: str | bytes | None = None
    tags: Mapping[str, str] | None = None
    prefixes: Sequence[int] = ()
    base: str | None = None
    parent: str | None = None
    target: bytes | None = None
    adapter: str | bytes | bool | None = None
    multimodal: bool = False
    has_embeds: bool = False
    time: int | None = None


def held(ids: Any) -> tuple[tuple[Any, ...] | Tokens, int]:
    """Return the ids as they are now, unaffected by later changes of the caller's, and the bytes that they take.

    Raises EvictionRefused for what is no sequence of ids.
    """
    if isinstance(ids, (list, tuple)):
        _check_length(len(ids))
        return tuple(ids), TUPLE_ITEM * len(ids)
    if isinstance(ids, (bytes, bytearray)):
        if len(ids) % 4:
            raise EvictionRefused("not token ids")
        found = np.frombuffer(bytes(ids), "<u4")
    else:
        given = ids if isinstance(ids, np.ndarray) else _of_torch(ids)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise EvictionRefused("not token ids")
        found = np.frombuffer(given.tobytes(), given.dtype)
    _check_length(len(found))
    return found, found.nbytes


def entry_of(request: EvictionRequest, tokenizer: bytes) -> JournalEntry:
    """Return the journal's entry of a request whose ids are `held`.

    Raises EvictionRefused and UsageError for a session that cannot be kept, and any Python error for arguments of a
    wrong type.
    """
    if request.salt and isinstance(request.tenant, str) and SALTED in request.tenant:
        raise EvictionRefused("tenant with a salt", f"give the salt itself, and a tenant without {SALTED}")
    tenant = tenant_of(request.tenant, request.salt)
    texts = request.session, tenant, request.base or "", request.parent or ""
    if not request.session or not request.tenant or not all(isinstance(text, str) for text in texts):
        raise UsageError("expected the name of a session, and of its tenant, base and parent")
    if (longest := max(len(text.encode("utf-8", "replace")) for text in texts)) > MAX_NAME:
        raise EvictionRefused("name too long", f"expected names of at most {MAX_NAME} bytes, found {longest}")
    assert request.target is not None and request.time is not None and not isinstance(request.adapter, bool)
    return JournalEntry(
        request.session,
        _array_of(request.token_ids),
        int(request.time),
        tenant,
        tokenizer,
        target_of(request.target, request.adapter),
        request.tags or {},
        _ends(request.prefixes, len(request.token_ids)),
        texts[2],
        texts[3],
    )


def _array_of(ids: tuple[Any, ...] | Tokens) -> Tokens:
    """Return held ids as an array, (T,). Raises UsageError."""
    if not isinstance(ids, tuple):
        return ids
    found = array("I")
    try:
        for at in range(0, len(ids), PIECE):
            if at:
                time.sleep(PAUSE)
            found.extend(array("I", ids[at : at + PIECE]))
    except (TypeError, ValueError, OverflowError) as exc:
        raise UsageError("expected token ids") from exc
    return np.frombuffer(found, np.uintc)


def _of_torch(ids: Any) -> Any:
    """Return the array over a tensor's memory. Raises EvictionRefused."""
    if not hasattr(ids, "requires_grad") or ids.requires_grad:  # integers never require gradients
        raise EvictionRefused("not token ids")
    if not ids.is_cpu:
        raise EvictionRefused("tokens on a device")  # copying them would wait for the device
    if ids.shape.numel() and not ids.data_ptr():
        raise EvictionRefused("not token ids")  # its memory was released; numpy would invent ids
    return ids.numpy()


def _check_length(length: int) -> None:
    if not 0 < length <= MAX_IDS:
        raise EvictionRefused("too long" if length else "no tokens")


def _ends(prefixes: Sequence[Any], length: int) -> tuple[int, ...]:
    """Return the prefixes that fit, ascending. They are hints, so others are left out."""
    ends: list[int] = []
    for end in prefixes:
        with suppress(TypeError):
            if (ends[-1] if ends else 0) < operator.index(end) <= length:
                ends.append(operator.index(end))
    return tuple(ends[:MAX_PREFIXES])
