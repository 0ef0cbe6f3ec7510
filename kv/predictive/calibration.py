"""Calibration: the file of predictors, transforms and tables of one target. Spec: FORMAT.md, "Calibration".

A calibration is named by its digest, over every tensor and every receipt in it. So a codec of another calibration
has another name, and a file that was changed is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pltz.kv.engines.streams import SYMBOLS, TABLES, Tables
from pltz.kv.port.bound import Bound, limits
from pltz.kv.port.private_file import opened
from pltz.kv.port.receipt import Receipt, between
from pltz.plt_codec import CorruptError, Readers, TargetMismatch, UsageError, number_in

NAME, VERSION = "pltz kv calibration", 1
FORMAT = f"{NAME} {VERSION}"
FINER = 16  # operating points per eighth of an octave of the step
NEAR = 0.25  # of an eighth of an octave: KL differs by 5 %, bits by 1 %
BELOW = 2  # layers that a layer is predicted from
MOST = 64  # size of an operating point
MAX_BYTES = 1 << 33
MAX_HEADER = 1 << 22  # bytes
TYPES = ("float32", "bfloat16", "float16", "float64")
LIMITS = {"layers": 1024, "heads": 4096, "dim": 4096, "hidden": 1 << 17}
DTYPES = {"I8": np.int8, "I16": np.int16, "U16": np.uint16, "F32": np.float32}

Array = NDArray[Any]


@dataclass(frozen=True)
class KVShape:
    """The shape of a target's KV. ``heads``: of keys. ``dim``: of a head. ``hidden``: of the embedding."""

    layers: int
    heads: int
    dim: int
    hidden: int

    @property
    def width(self) -> int:
        """Return the elements of one token and layer, keys and values together."""
        return 2 * self.heads * self.dim

    def inputs(self, layer: int) -> int:
        """Return the number of inputs of a layer's predictor."""
        return self.hidden + min(layer, BELOW) * self.width


@dataclass(frozen=True, eq=False)
class Calibration:
    """A calibration in memory. ``target``: fingerprint, 16 bytes. ``tensors``: by name, as in the file.

    ``receipts``: of every form and operating point that was measured. ``type``: of the target's numbers when they were,
    as torch names it: rounding in another type loses something of its own.
    """

    target: bytes
    shape: KVShape
    tensors: Mapping[str, Array]
    receipts: tuple[Receipt, ...] = ()
    type: str = TYPES[0]

    @property
    def digest(self) -> bytes:
        """Return the 16 bytes that name it."""
        state = hashlib.blake2b(json.dumps(self._meta(), sort_keys=True).encode(), digest_size=16)
        for name in sorted(self.tensors):
            tensor = np.ascontiguousarray(self.tensors[name])
            state.update(f"{name} {tensor.dtype.str} {tensor.shape}".encode())
            state.update(tensor.data)
        return state.digest()

    @property
    def name(self) -> str:
        """Return the name of its file, unless the user chose one."""
        return f"{self.target.hex()}.{PREDICTIVE}.{self.digest.hex()}.safetensors"

    @property
    def tables(self) -> Tables:
        """Return the tables of the entropy coder. Raises CorruptError where they are none."""
        return Tables(self.tensors["freq"], self.tensors["mean"], self.tensors["level"])

    def _meta(self) -> dict[str, Any]:
        shape = {name: getattr(self.shape, name) for name in LIMITS}
        receipts = [receipt.to_dict() for receipt in self.receipts]
        return {"target": self.target.hex(), "type": self.type, **shape, "receipts": receipts}

    def receipt(self, form: str, point: float = 0) -> Receipt | None:
        """Return what was measured of a form at an operating point, or what the points on both sides of it say.

        None where nothing was measured, and for a point outside of those that were.
        """
        measured = sorted((r for r in self.receipts if r.form == form), key=lambda r: r.point)
        for low, high in pairwise(measured):
            if low.point < point < high.point:
                return between(low, high, point)
        return next((r for r in measured if r.point == point), None)

    def point(
        self, *, max_kl: float | None = None, max_kl_recall: float | None = None, bits: float | None = None
    ) -> float:
        """Return the coarsest operating point that keeps to ``max_kl``, or the one with the most bits within ``bits``.

        ``max_kl`` is compared with the upper limit of the loss (`Receipt.most`), ``max_kl_recall`` with that of recall
        (None: four times ``max_kl``). Every finer point must keep to them, too. A measured point that is at most NEAR
        finer is preferred.

        Raises UsageError where no point between the measured ones is within the bound: serve from tokens, or loosen it.
        """
        if (max_kl is None) == (bits is None) or (max_kl is None and max_kl_recall is not None):
            raise UsageError("give a bound on the loss (max_kl) or on the size (bits), not both")
        measured = [r.point for r in self.receipts if r.form == PREDICTIVE]
        first, last = (round(edge * FINER) for edge in (min(measured, default=0), max(measured, default=-1)))
        found = [r for p in range(first, last + 1) if (r := self.receipt(PREDICTIVE, p / FINER)) is not None]
        best: Receipt | None
        if max_kl is not None:
            *_, best = (None, *(kept := list(takewhile(Bound.of(max_kl, max_kl_recall).keeps, found))))
            near = (r for r in reversed(kept) if best is not None and best.point - r.point <= NEAR)
            best = next((r for r in near if r in self.receipts), best)
        else:
            best = max((r for r in found if bits is not None and r.bits <= bits), key=lambda r: r.bits, default=None)
        if best is None:
            new, recall = (min((limits(r)[n] for r in found), default=math.inf) for n in range(2))
            least = min((r.bits for r in found), default=math.inf)
            told = f"{least:.3g} bits" if bits is not None else f"max_kl {new:.2g}, max_kl_recall {recall:.2g}"
            raise UsageError(
                f"no measured point is within the bound; the nearest is at {told}: loosen it, or keep tokens"
            )
        return best.point

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file at once, or not at all. Returns its path; a folder gets the name that the spec gives."""
        from safetensors.numpy import save

        place = Path(path)
        if place.is_dir():
            place = place / self.name
        meta = {"format": FORMAT, "meta": json.dumps(self._meta(), sort_keys=True), "digest": self.digest.hex()}
        part = place.with_name(f"{place.name}.{os.urandom(4).hex()}.part")
        try:
            with os.fdopen(opened(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(save({k: np.ascontiguousarray(v) for k, v in self.tensors.items()}, meta))
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
        return place

    @classmethod
    def load(cls, path: str | os.PathLike[str], target: bytes | None = None) -> Calibration:
        """Return the calibration in a file.

        ``target``: the fingerprint it must be of, if given.

        Raises:
            UsageError: the file cannot be read.
            VersionError: it is of a later format.
            CorruptError: it is damaged, or no calibration, or not the one that its name says.
            TargetMismatch: it was made for other weights.
        """
        try:
            if os.path.getsize(path) > MAX_BYTES:
                raise CorruptError(f"{path} is larger than any calibration")
            data = Path(path).read_bytes()
        except OSError as exc:
            raise UsageError(f"cannot read the calibration {path}: {exc.strerror or exc}") from exc
        found = cls.parse(data)
        if FILE.fullmatch(Path(path).name) and Path(path).name != found.name:
            raise CorruptError(f"{path} holds another calibration, {found.name}: give each its own name again")
        if target is not None and found.target != target:
            raise TargetMismatch(
                f"{path} was made for a target with fingerprint {found.target.hex()}, this one has {target.hex()}: "
                "calibrate this target with `pltz target calibrate`"
            )
        return found

    @classmethod
    def parse(cls, data: bytes) -> Calibration:
        """Return the calibration in bytes. Raises as `load` does."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        if (size := int.from_bytes(data[:8], "little")) > MAX_HEADER:
            raise CorruptError("not a calibration: its header is too large")
        try:
            tensors = load(data)
            meta = json.loads(data[8 : 8 + size]).get("__metadata__")
        except (SafetensorError, KeyError, ValueError, RecursionError) as exc:
            raise CorruptError(f"not a calibration ({exc})") from exc
        if not isinstance(meta, dict) or set(meta) != {"format", "meta", "digest"}:
            raise CorruptError("not a calibration: fields are missing")
        if (version := number_in(meta["format"], NAME)) is None:
            raise CorruptError(f"expected the format {FORMAT}, found {meta['format']!r}: no calibration, or damaged")
        read = VERSIONS[version]
        return read(tensors, meta)


def _read(tensors: Mapping[str, Array], meta: Mapping[str, str]) -> Calibration:
    """Return the calibration in a file of format 6. ``meta``: facts, and the digest of everything."""
    try:
        facts = json.loads(meta["meta"])
        sizes = {name: facts[name] for name in LIMITS}
        target = bytes.fromhex(facts["target"])
        receipts = tuple(Receipt.of(one) for one in facts["receipts"])
    except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError) as exc:
        raise CorruptError(f"not the facts of a calibration ({exc})") from exc
    if set(facts) != {"target", "type", "receipts", *LIMITS}:
        raise CorruptError("not the facts of a calibration: there are others")
    if facts["type"] not in TYPES:
        raise CorruptError(f"expected the type of a target's numbers, found {str(facts['type'])[:40]!r}")
    if any(type(n) is not int or not 0 < n <= LIMITS[name] for name, n in sizes.items()) or len(target) != 16:
        raise CorruptError("a calibration with sizes that cannot be")
    shape = KVShape(**sizes)
    wanted = expected(shape, _ranks(tensors, shape))
    if {name: (t.dtype, t.shape) for name, t in tensors.items()} != {
        name: (np.dtype(DTYPES[kind]), size) for name, (kind, size) in wanted.items()
    }:
        raise CorruptError("the tensors of the calibration are not those of its shape")
    points = [(r.form, r.point) for r in receipts]
    if len(set(points)) < len(points) or any(abs(point) > MOST or point * FINER % 1 for _, point in points):
        raise CorruptError("receipts of points that cannot be, or two of one point")
    found = Calibration(target, shape, tensors, receipts, facts["type"])
    if found.digest.hex() != meta["digest"]:
        raise CorruptError("the digest is not that of the contents: damaged or changed")
    if any(t.dtype == np.float32 and not np.isfinite(t).all() for t in tensors.values()):
        raise CorruptError("a calibration with numbers that are not finite")
    _ = found.tables
    return found


VERSIONS = Readers("the calibration", {VERSION: _read})


PREDICTIVE = "predictive-1"
FILE = re.compile(rf"[0-9a-f]{{32}}\.{PREDICTIVE}\.[0-9a-f]{{32}}\.safetensors")


def expected(shape: KVShape, ranks: list[int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type and shape of every tensor. ``ranks``: of each layer's predictor, 0 for a full one."""
    width = shape.width
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "freq": ("U16", (TABLES, SYMBOLS)),
        "mean": ("U16", (TABLES,)),
        "level": ("I16", (shape.layers, width)),
        "constant": ("F32", (shape.layers, width)),
        "basis": ("I8", (shape.layers, width, width)),
        "basis.scale": ("F32", (shape.layers, width)),
    }
    for layer, rank in enumerate(ranks):
        inputs, outputs = shape.inputs(layer), rank or width
        found[f"predict.{layer}"] = ("I8", (inputs, outputs))
        found[f"predict.{layer}.in"] = ("F32", (inputs,))
        found[f"predict.{layer}.out"] = ("F32", (outputs,))
        if rank:
            found[f"spread.{layer}"] = ("I8", (rank, width))
            found[f"spread.{layer}.scale"] = ("F32", (rank,))
    return found


def _ranks(tensors: Mapping[str, Array], shape: KVShape) -> list[int]:
    ranks = [len(tensors[name]) if (name := f"spread.{n}") in tensors else 0 for n in range(shape.layers)]
    if any(not 0 <= rank < shape.width for rank in ranks):
        raise CorruptError("a predictor of a rank that cannot be")
    return ranks
