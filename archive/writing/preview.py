"""Preview: what a put of a session would do, told by its name, ids of segments and facts. Nothing is coded or decoded.

    new          no version has this name
    unchanged    a log whose ids, or a file whose size and time, are those of a stored version
    grown        a log that begins with the last version
    changed      a log that does not
    erased       it was erased, and is not put again unless the request says so
    stored       there is a version of this name, and only a put tells whether it is the same
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.directory import history_of
from pltz.archive.format.ids import TENANT, tenant_of
from pltz.archive.writing.last_towers import LastTowers
from pltz.archive.writing.new_session import Sliced
from pltz.archive.writing.put_request import PutRequest, coded_as_log
from pltz.coding.codecs.logs import LOG_TOKENIZER
from pltz.datasets.given import as_session
from pltz.models.session.long_text import LongText

State = Literal["new", "erased", "unchanged", "grown", "changed", "stored"]


class Preview(NamedTuple):
    """The outcome that a put would have.

    ``size``: bytes of the content. ``version``: number of the version that is there, an equal one or the last; 0: none.
    """

    request: PutRequest
    kind: str
    size: int
    state: State
    version: int


def preview(catalog: Catalog, last: LastTowers, request: PutRequest) -> Preview:
    """Return what a put of a session would do. Raises StoreError, and ContentError where it is over a limit."""
    session = as_session(request.session)
    content: Sliced = session.value if isinstance(session.value, LongText) else session.to_bytes()
    tenant, kind = tenant_of(request.tenant, request.salt), "log" if coded_as_log(session, content) else session.kind
    if not request.erased_too and catalog.keys.buried(catalog.keys.domain(TENANT, tenant), request.name):
        return Preview(request, kind, len(content), "erased", 0)
    history = history_of(catalog, tenant, request.name)
    versions = [v for v in history.versions if v.part == request.part and not v.forgotten]
    if not versions:
        return Preview(request, kind, len(content), "new", 0)
    facts, newest = request.content, versions[-1]
    if newest.tokenizer == LOG_TOKENIZER:
        for v in (v for v in reversed(versions) if v.tokenizer == LOG_TOKENIZER):
            begun, ends, whole = last.beginning(v, content)
            same = (ends[-1] if ends else begun.size) == len(content)
            if whole and (v is newest or same):
                state: State = "unchanged" if same else "grown"
                return Preview(request, kind, len(content), state, v.version)
        return Preview(request, kind, len(content), "changed", newest.version)
    told = facts.mtime and (facts.mtime, facts.size) == (newest.content.mtime, newest.content.size)
    return Preview(request, kind, len(content), "unchanged" if told else "stored", newest.version)
