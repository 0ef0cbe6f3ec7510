"""The origin of a net that training goes on from or learns from: a bundle, or the net of an earlier run.

A bundle is given by name or folder, a run by the folder of its net. A bundle holds integers. The net whose
rounding they are is known up to the rounding error (export.restore). Before its first step it codes as the
bundle does, within 1 % (tests/models/test_origin.py). It has the bundle's tokenizer and shape. So streams
must have the same tokenizer, and settings the same shape or a larger one (grow.py). Both are checked before
anything is trained.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

from pltz.models.bundle.bundle import Bundle
from pltz.models.training import net_files
from pltz.models.training.export import restore
from pltz.models.training.grow import misfits
from pltz.models.training.net_files import Rounded
from pltz.models.training.shape import NetConfig, NetShape
from pltz.models.training.stages import digest, digest_files
from pltz.plt_codec.errors import UsageError


class Origin:
    """One origin.

    Args:
        name: of a bundle that ships, or the folder of a bundle or of a net.
        place: the setting that named it, for messages.

    Raises:
        UsageError: there is no such bundle or folder.
    """

    def __init__(self, name: str, place: str) -> None:
        self.name, self.place = name, place
        here = name not in Bundle.names() and (Path(name) / net_files.NET).is_file()
        self.bundle = None if here else Bundle.load(name)

    @cached_property
    def net(self) -> Rounded:
        """Return the net.

        Raises:
            ModelError: it cannot be read, or has no floats.
        """
        return net_files.read(Path(self.name)) if self.bundle is None else restore(self.bundle.weights)

    @property
    def key(self) -> str:
        """Return hexadecimal digits that name its content."""
        if self.bundle is not None:
            return self.bundle.id.hex()
        return digest(digest_files([str(Path(self.name) / part) for part in (net_files.NET, net_files.CONFIG)]))

    def shape(self) -> dict[str, Any]:
        """Return the keys of its shape."""
        return {f.name: getattr(self.net.config, f.name) for f in dataclasses.fields(NetShape)}

    def write(self, folder: Path) -> None:
        """Write the net into a folder."""
        net_files.write(self.net, folder)

    def check_tokenizer(self, found: bytes) -> None:
        """Refuse a tokenizer other than the bundle's. Of a net only the number of ids is known.

        Raises:
            UsageError: the tokenizer is another one.
        """
        if self.bundle is not None and self.bundle.tokenizer.json != found:
            raise UsageError(
                f"{self.place}: bundle {self.name} has another tokenizer: "
                f'use [tokenizer] kind = "bundle", bundle = "{self.name}"'
            )

    def check_shape(self, wanted: NetConfig) -> None:
        """Refuse a configuration whose net cannot go on from this one. It may be larger (grow.py).

        Raises:
            UsageError: the shape does not fit.
        """
        if other := misfits(self.net.config, wanted):
            raise UsageError(
                f"{self.place}: {self.name} has another shape: leave the keys of its shape out, or set "
                f"{', '.join(other)}"
            )
