"""EvictionRequest: the argument of `on_evict`. Eviction: one in memory, and the journal's entry made of it.

Nothing is checked before the flusher makes that entry.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pltz.archive.format.ids import SALTED, target_of, tenant_of
from pltz.archive.format.record import MAX_NAME
from pltz.plt_codec.errors import UsageError
from pltz.serving.eviction.journal.entry import MAX_PREFIXES, JournalEntry
from pltz.serving.eviction.token_buffer import EvictionRefused, HeldTokens, ids_of


class EvictionRequest(NamedTuple):
    """A session whose KV cache is evicted. Making one checks nothing and raises nothing.

    Immutable: any thread may use it.

    Args:
        session: its name in the archive. The same name again is its next version.
        token_ids: all tokens in the KV and the last one sampled, (T,). A list, tuple, numpy array or CPU
            torch tensor, or bytes, 4 per id, little-endian. Copied by `on_evict`.
        salt: under which its KV was shared (vLLM's ``cache_salt``). A digest is kept, see
            `ids.tenant_of`.
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


class Eviction(NamedTuple):
    """An eviction in memory.

    ``at``: monotonic seconds. ``size``: bytes it takes in memory. ``ids``: as `token_buffer.TokenBuffers` holds
    them.
    """

    ticket: int
    at: float
    size: int
    session: str
    ids: tuple[Any, ...] | HeldTokens
    tenant: str
    salt: str | bytes | None
    tags: dict[str, str]
    prefixes: tuple[int, ...]
    base: str
    parent: str
    target: bytes
    adapter: str | bytes | None
    time: int

    def encode(self, tokenizer: bytes) -> bytes:
        """Return the body of the journal's entry.

        Raises EvictionRefused, ContentError and UsageError for a session that cannot be kept, and any Python error
        for arguments of a wrong type.
        """
        if self.salt and isinstance(self.tenant, str) and SALTED in self.tenant:
            raise EvictionRefused("tenant with a salt", f"give the salt itself, and a tenant without {SALTED}")
        tenant, target = tenant_of(self.tenant, self.salt), target_of(self.target, self.adapter)
        texts = self.session, tenant, self.base, self.parent
        if not self.session or not self.tenant or not all(isinstance(text, str) for text in texts):
            raise UsageError("expected the name of a session, and of its tenant, base and parent")
        if (longest := max(len(text.encode("utf-8", "replace")) for text in texts)) > MAX_NAME:
            raise EvictionRefused("name too long", f"expected names of at most {MAX_NAME} bytes, found {longest}")
        entry = JournalEntry(
            self.session,
            ids_of(self.ids),
            int(self.time),
            tenant,
            tokenizer,
            target,
            self.tags,
            _ends(self.prefixes, len(self.ids)),
            self.base,
            self.parent,
        )
        return entry.encode(known=isinstance(self.ids, HeldTokens) and self.ids.known)


def _ends(prefixes: tuple[Any, ...], length: int) -> tuple[int, ...]:
    """Return the prefixes that fit, ascending. They are hints, so others are left out."""
    ends: list[int] = []
    for end in prefixes:
        with suppress(TypeError):
            if (ends[-1] if ends else 0) < operator.index(end) <= length:
                ends.append(operator.index(end))
    return tuple(ends[:MAX_PREFIXES])
