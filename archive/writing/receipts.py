"""Receipts of a put, from what the writer committed."""

from __future__ import annotations

from pltz.archive.catalog.reader import Tower
from pltz.archive.writing.new_session import CommitReceipt, NewSession
from pltz.archive.writing.put_request import ID_BYTES, PreparedRequest, PutReceipt
from pltz.coding.codecs.bundle_codecs import BundleCodecs
from pltz.coding.codecs.codec import BytesCodec, IdsCodec
from pltz.coding.codecs.logs import LogCodec, method_of
from pltz.coding.log.log_coder import METHODS


def put_receipt(request: PreparedRequest, cut: NewSession, committed: CommitReceipt, *, dry_run: bool) -> PutReceipt:
    """Return the receipt of a session that was put, or in a dry run would be."""
    method, opaque = _method(committed)
    return PutReceipt(
        tenant=request.tenant,
        name=request.name,
        version=committed.version,
        id=b"" if dry_run else committed.id,
        segments=committed.new,
        size=committed.size,
        by_model=method.endswith("model") or method == "log",
        unchanged=committed.unchanged,
        kind=cut.kind,
        tokens=committed.tokens,
        tower=committed.segments,
        target=request.target,
        method=method,
        opaque=opaque,
    )


def repeated(request: PreparedRequest, tower: Tower, codecs: BundleCodecs) -> PutReceipt:
    """Return the receipt of token ids that the archive has already."""
    tokens = len(tower.tokens)
    by_model = not codecs.too_many_for_model(ID_BYTES * tokens)
    return PutReceipt(
        tenant=request.tenant,
        name=request.name,
        version=tower.version.version,
        id=tower.version.id,
        segments=0,
        size=0,
        by_model=by_model,
        unchanged=True,
        kind="ids",
        tokens=tokens,
        tower=len(tower.segments),
        target=request.target,
        method="model" if by_model else "zstd",
    )


def _method(committed: CommitReceipt) -> tuple[str, int | None]:
    """Return the method and the opaque bytes of what a put stored, as in `PutReceipt`."""
    if not isinstance(committed.codec, LogCodec):
        return "zstd" if isinstance(committed.codec, BytesCodec | IdsCodec) else "model", None
    if not committed.coded:
        return "log", None
    methods, opaque = zip(*map(method_of, committed.coded), strict=True)
    return max(methods, key=METHODS.index), sum(opaque)
