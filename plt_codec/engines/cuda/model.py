"""A bundle's tensors on a device, by name and in the order of struct Model of common.cuh."""

from __future__ import annotations

import ctypes

from pltz.plt_codec.engines.cuda.device import Device
from pltz.plt_codec.engines.cuda.pack import tensors
from pltz.plt_codec.weights import Weights

POINTERS = (
    "embed.w", "class.w", "shift.w", "embed.m", "class.m", "class.b", "shift.m", "member.m", "member.b",
    "table.exp", "table.phase", "table.cos", "table.sin",
)  # fmt: skip
OF_LAYERS = ("qkv.w", "out.w", "up.w", "down.w", "qkv.m", "out.m", "up.m", "down.m", "heat")
GATED_LAYERS = ("norm_in", "norm_mid")


class DeviceModel:
    """The tensors of one bundle on one device.

    ``at``: address of each tensor by name. ``pointers``: the addresses that a kernel takes together.

    Raises:
        ModelError: memory does not suffice.
    """

    def __init__(self, weights: Weights, device: Device):
        self.shape, self.device = weights.shape, device
        self.at: dict[str, int] = {}
        for name, array in tensors(weights).items():
            self.at[name] = device.alloc(array.nbytes)
            device.upload(self.at[name], array)
        order = [*POINTERS, *(f"layer.{i}.{part}" for part in OF_LAYERS for i in range(weights.shape.layers))]
        if weights.shape.gated:
            order += ["norm_out", "table.act"]
            order += [f"layer.{i}.{part}" for part in GATED_LAYERS for i in range(weights.shape.layers)]
        self.pointers = (ctypes.c_uint64 * len(order))(*(self.at[name] for name in order))

    def __del__(self) -> None:
        for address in self.at.values():
            self.device.free(address)
