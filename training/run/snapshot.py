"""Snapshots: all that a training run needs to go on after a step, in files that travel between machines.

    resume-STEP/
        000, 001, ...   the bytes of torch.save, cut into files of at most 16 MiB
        parts.json      {"bytes": their sum, "blake2b": digest of them all}

A snapshot appears whole, by a rename, and older ones go after that. So a run that is killed at any instant leaves one
that can be read. Copied to another machine, with the rest of the work folder, it goes on there by the same command.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from pltz.models import publish
from pltz.plt_codec import ModelError

PREFIX = "resume-"
PARTS = "parts.json"
PART = 1 << 24  # bytes of a file, at most


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the snapshot of a step, and remove those before it."""
    whole = io.BytesIO()
    torch.save(state, whole)
    data = whole.getbuffer()
    part = folder / f"{PREFIX}new"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for number, begin in enumerate(range(0, len(data), PART)):
        (part / f"{number:03}").write_bytes(data[begin : begin + PART])
    head = {"bytes": len(data), "blake2b": hashlib.blake2b(data, digest_size=16).hexdigest()}
    (part / PARTS).write_text(json.dumps(head) + "\n")
    final = folder / f"{PREFIX}{step:09}"
    older = [path for path in saved(folder) if path != final]
    shutil.rmtree(final, ignore_errors=True)  # of the same step: saved twice
    publish(part, final)
    for path in older:
        shutil.rmtree(path)


def saved(folder: Path) -> list[Path]:
    """Return the snapshots in a folder, the newest last."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit())


def load(folder: Path, device: str) -> dict[str, Any] | None:
    """Return the state of the newest snapshot on a device, or None.

    Raises:
        ModelError: a file of it is missing or damaged.
    """
    if not (found := saved(folder)):
        return None
    newest = found[-1]
    try:
        head = json.loads((newest / PARTS).read_text())
        data = b"".join(path.read_bytes() for path in sorted(newest.glob("[0-9]*")))
        if [len(data), hashlib.blake2b(data, digest_size=16).hexdigest()] != [head["bytes"], head["blake2b"]]:
            raise ValueError("a file is missing or damaged")
        state: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, UnpicklingError) as exc:
        raise ModelError(
            f"the snapshot {newest} is damaged ({exc}): copy it again, or remove it to train from the start"
        ) from exc
    return state


def remove(folder: Path) -> None:
    """Remove all snapshots of a folder."""
    for path in [*saved(folder), folder / f"{PREFIX}new"]:
        shutil.rmtree(path, ignore_errors=True)
