"""SlotKeeper: slot files of llama.cpp's ``llama-server``, with what the server does not check: model and checksum.

    keep:    save -> ids and checksum -> name.slot, name.json           a slot's KV and the session it is of
    restore: name.json -> model, adapters, build, ids -> checksum -> the server's own restore, or False

A slot file is 100 to 1000 times larger than the session in an archive, and is restored in milliseconds. The server
takes a file with changed bits, and one of other weights. So a file is restored only where all of it is as it was, and
only for the ids it was saved with. Spec: FORMAT.md.

These files are not in the store of KV (`kv/store`): the server alone writes and reads them, whole, and in a folder of
its own. So no block of one is found, shared or evicted apart, and a copy in the store would double what is the largest.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pltz.archive import Tokens
from pltz.plt_codec import ContentError, ModelError, UsageError, digest
from pltz.serving.engines.llama_server import LlamaServer, SlotState
from pltz.serving.engines.llama_slots import read_slot_ids

FORMAT = "pltz slot 1"
FILE = re.compile(r"pltz-([0-9a-f]{32})\.(slot|json)")
PART = re.compile(r"pltz-[0-9a-f]{32}\.[0-9a-f]{8}\.part")
FIELDS = {"format", "session", "tenant", "tokens", "ids", "served", "size", "sum"}
MAX_NOTE = 1 << 16  # bytes
LEFT = 3600.0  # seconds after which a .part file is one that a kill left


@dataclass(frozen=True)
class KeptSlot:
    """A slot file. ``tokens`` and ``ids``: number of its ids, and their digest. ``size``: of the file, in bytes."""

    session: str
    tenant: str
    tokens: int
    ids: str
    size: int


def digest_ids(ids: Tokens) -> str:
    """Return the digest of ids, 32 hexadecimal digits."""
    return digest(b"pltz slot ids", np.ascontiguousarray(ids, "<i4").tobytes()).hex()


class SlotKeeper:
    """Slot files of one server, within a budget. Not safe for several threads.

    Args:
        server: which was started with ``--slot-save-path``.
        folder: that path, as this machine sees it.
        budget: bytes that the kept slot files may take; with 0 none is kept.
        variant: any text: options of the server that change its KV, such as those of RoPE.

    Raises UsageError where there is no such folder, and ModelError where the server does not answer.
    """

    def __init__(self, server: LlamaServer, folder: str | Path, budget: int, *, variant: str = "") -> None:
        self.server, self.folder, self.budget, self.variant = server, Path(folder), budget, variant
        if not self.folder.is_dir():
            raise UsageError(f"expected the folder of --slot-save-path, found none at {folder}")
        if budget and server.target is None:
            raise UsageError("a slot is kept for one model, which is not known: name its file (model)")
        self._clean()

    def save(self, state: SlotState, named: Callable[[Tokens], tuple[str, str]]) -> tuple[Tokens, KeptSlot | None]:
        """Save a slot. Returns its ids, (T,) int64, and the file, None where there is no room for it.

        Args:
            state: of the slot as it was seen. An emptied one gives no ids.
            named: function from the ids to the session's name and tenant.

        Raises what `LlamaServer.slot_ids` does, and ModelError where a request used the slot meanwhile.
        """
        part = self.folder / f"pltz-{os.urandom(16).hex()}.{os.urandom(4).hex()}.part"
        try:
            served = self._served(state.adapter, state.room)
            saved = self.server.save_slot(state.slot, part.name)
            if not saved:
                return np.zeros(0, np.int64), None
            # The server saves after the request that runs. Its adapters may be others than those that were seen.
            if self.server.slot_state(state.slot) != state:
                raise ModelError(f"slot {state.slot} changed while it was saved: it is saved again")
            ids = read_slot_ids(part, self.server.vocab_size)
            if len(ids) != saved:
                raise ModelError(f"expected the {saved} tokens that the server saved, found {len(ids)} in its file")
            session, tenant = named(ids)
            return ids, self._keep(part, ids, session, tenant, served)
        finally:
            with suppress(OSError):
                part.unlink()

    def _keep(self, part: Path, ids: Tokens, session: str, tenant: str, served: str) -> KeptSlot | None:
        """Give a saved file its name and its note. Returns None where there is no room, or the disk fails."""
        try:
            with suppress(PermissionError):  # where the server is another user's, its own mode stays
                part.chmod(0o600)
            size = part.stat().st_size
            at = self._path(session, tenant)
            if size > self.budget:
                return None
            self._evict(self.budget - size, at.stem)
            kept = KeptSlot(session, tenant, len(ids), digest_ids(ids), size)
            note = {"format": FORMAT, **kept.__dict__, "served": served, "sum": _sum(part)}
            at.with_suffix(".json").unlink(missing_ok=True)  # of the old file
            part.replace(at.with_suffix(".slot"))
            written = at.with_name(f"{at.stem}.{os.urandom(4).hex()}.part")
            try:
                written.touch(0o600, exist_ok=False)
                written.write_text(json.dumps(note))
                written.replace(at.with_suffix(".json"))
            finally:
                written.unlink(missing_ok=True)
        except OSError:
            self.forget(session, tenant=tenant)  # a file without a note would take room that nobody counts
            return None
        return kept

    def restore(self, session: str, ids: Tokens, slot: int, *, tenant: str = "default") -> int:
        """Let the server restore a session's KV from its file. Returns the tokens in the slot then, 0 where it did not.

        A file that is damaged is removed. One of another model, or of other ids than the first ones of ``ids``, is not
        restored. Raises UsageError where there is no such slot, and ModelError where the server does not answer.
        """
        at = self._path(session, tenant)
        note = self._said(at)
        room = self.server.slot_state(slot).room
        if note is None or note["served"] != self._served(self.server.adapter, room) or note["tokens"] > len(ids):
            return 0
        if note["ids"] != digest_ids(ids[: note["tokens"]]):
            return 0
        path = at.with_suffix(".slot")
        try:
            whole = path.lstat().st_size == note["size"] and _sum(path) == note["sum"]
            restored = self.server.restore_slot(slot, path.name) if whole else 0
        except (ContentError, OSError):  # refused by the server, or gone
            restored = 0
        if restored != note["tokens"]:
            if restored:
                self.server.erase(slot)
            self.forget(session, tenant=tenant)
            return 0
        with suppress(OSError):
            os.utime(at.with_suffix(".json"))
        return restored

    def forget(self, session: str, *, tenant: str = "default") -> None:
        """Remove the file of a session."""
        at = self._path(session, tenant)
        for path in (at.with_suffix(".json"), at.with_suffix(".slot")):
            with suppress(OSError):
                path.unlink()

    def kept(self) -> list[KeptSlot]:
        """Return all files, the one used longest ago first."""
        return [kept for _, kept, _ in sorted(self._files(), key=lambda file: file[0])]

    def _served(self, adapter: str | None, room: int) -> str:
        """Return all that a slot's KV follows from beside its ids. Raises UsageError and ModelError."""
        target, build = self.server.target, str(self.server.properties.get("build_info"))
        return json.dumps([target.hex() if target else None, adapter, build, room, self.variant])

    def _path(self, session: str, tenant: str) -> Path:
        names = (tenant.encode("utf-8", "surrogatepass"), b"\0", session.encode("utf-8", "surrogatepass"))
        return self.folder / f"pltz-{digest(b'pltz slot', *names).hex()}"

    def _said(self, path: Path) -> dict[str, Any] | None:
        """Return what is said of a slot file, by it or its note. None where it cannot be, or is of another file."""
        note = _note(path.with_suffix(".json"))
        return note if note is not None and self._path(note["session"], note["tenant"]).stem == path.stem else None

    def _files(self) -> Iterator[tuple[float, KeptSlot, Path]]:
        """Yield time of use, file and path of all that is kept."""
        for path in self.folder.glob("pltz-*.json"):
            if FILE.fullmatch(path.name) and (note := self._said(path)) is not None:
                with suppress(OSError):
                    fields = {name: note[name] for name in KeptSlot.__dataclass_fields__}
                    yield path.stat().st_mtime, KeptSlot(**fields), path

    def _evict(self, goal: int, but: str) -> None:
        """Remove the files that were used longest ago, until ``goal`` bytes are left. ``but``: one that is replaced."""
        self._clean()
        files = sorted(self._files(), key=lambda file: file[0])
        left = sum(kept.size for _, kept, path in files if path.stem != but)
        for _, kept, path in files:
            if left > goal and path.stem != but:
                self.forget(kept.session, tenant=kept.tenant)
                left -= kept.size

    def _clean(self) -> None:
        """Remove what a kill left: parts that are old, and slot files without a note."""
        for path in self.folder.glob("pltz-*"):
            with suppress(OSError):
                lone = FILE.fullmatch(path.name) and self._said(path) is None
                if (lone or PART.fullmatch(path.name)) and time.time() - path.lstat().st_mtime > LEFT:
                    path.unlink()


def _note(path: Path) -> dict[str, Any] | None:
    """Return what is said of a slot file, None where it cannot be."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            note = json.loads(file.read(MAX_NOTE))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(note, Mapping) or set(note) != FIELDS or note["format"] != FORMAT:
        return None
    numbers = all(type(note[name]) is int and 0 <= note[name] < 1 << 48 for name in ("tokens", "size"))
    texts = all(isinstance(note[name], str) for name in FIELDS - {"tokens", "size"})
    return dict(note) if numbers and texts else None


def _sum(path: Path) -> str:
    """Return the checksum of a file. Raises OSError, also for what is no file."""
    import xxhash

    state = xxhash.xxh3_128()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no file")
        while data := file.read(1 << 20):
            state.update(data)
    return state.hexdigest()
