"""Thaw of a session in a .pltz file: `pltz.thaw`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pltz import api
from pltz.coding import as_target, bridge_between
from pltz.datasets import left_out, messages_of, rendered, seen_by
from pltz.kv.thaw.thawed import Thawed, check_target, thaw as prefill
from pltz.models import MESSAGE

if TYPE_CHECKING:
    from typing import Unpack

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pltz.coding import Path_, SessionFile
    from pltz.models import Target
    from pltz.options import BundleKeywords
    from pltz.plt_codec import Reader


def thaw(
    data: Path_ | bytes | Reader,
    target: Path_ | Target | PreTrainedModel | None = None,
    index: int = 0,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    any_target: bool = False,
    chunk: int | None = None,
    max_tokens: int | Literal["auto"] | None = "auto",
    **options: Unpack[BundleKeywords],
) -> Thawed:
    """Make a session of a .pltz file hot again: decode its tokens and prefill the target with them, once.

    A session of an archive is thawed by `Thawer`.

    Args:
        data: path or bytes of a .pltz file, or a `Reader` of it.
        target: the model, by folder or name, or loaded by pltz or transformers; None: the one that ships with pltz.
        index: session number.
        tokenizer: of a model that transformers loaded, where it is not the one in its folder (see `Target.of`).
        any_target: take a target that the file was not frozen for.
        chunk: prefill at most so many tokens at a time.
        max_tokens: as in `decompress`.
        bundle, device, threads: as in `compress`; the device is the decoder's, not the target's.

    Returns:
        Thawed: cache, token_ids, logits of the last position, timings in milliseconds.

    Raises:
        TargetMismatch: frozen for other weights; ContentError: the target cannot take these tokens; and what
            `decompress` raises.
    """

    model = as_target(target, tokenizer)
    start = time.perf_counter()
    with api.open(data, target=model, max_tokens=max_tokens, **options) as file:
        frozen_for = file.reader.header.target_fingerprint
        if frozen_for is not None:  # before any decoding: a fingerprint of other weights makes all of it vain
            check_target(frozen_for, model.fingerprint, any_target=any_target)
        file.codec  # noqa: B018  (loaded here, so that its time is not decoding time)
        read = time.perf_counter()
        ids, note = target_ids(file, index, model)
    decoded = time.perf_counter()
    timings = {"read": 1e3 * (read - start), "decode": 1e3 * (decoded - read)}
    thawed = prefill(ids, model, frozen_for=frozen_for, any_target=any_target, chunk=chunk, timings=timings)
    return replace(thawed, left_out=note)


def target_ids(file: SessionFile, index: int, model: Target) -> tuple[np.ndarray[Any, Any], str]:
    """Return the ids to prefill ``model`` with for session ``index``, (T,), and what they leave out of a log.

    Ids are themselves, and bundle tokens are the target's own where both have one tokenizer and chat template. Else a
    chat goes through the target's template and a text through its tokenizer. Of an agent's log the conversation that it
    had does.
    """
    kind = file.info(index).content.kind
    plain = kind != "chat" or model.writes_as_shipped
    if kind == "ids" or (plain and bridge_between(model.tokenizer_json, file.codec).identity):
        bridge = file.bridge if kind == "ids" else None
        ids = file.codec.token_ids(file.reader, index, bridge=bridge, limits=file.limits)
        if kind == "ids" or (kind == "chat" and not np.any(ids == MESSAGE)):  # events of a log are no plain messages
            return ids, ""
        messages = messages_of(session := file[index])
        return (ids, "") if messages is None else (np.asarray(rendered(model, messages).value), left_out(session))
    session = file[index]
    note = "" if messages_of(session) is None else left_out(session)
    return np.asarray(seen_by(model, session).value), note
