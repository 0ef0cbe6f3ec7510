"""Make the start of a narrower student: random layers, and the table of a wider bundle in its main directions.

    python -m pltz.training.nets.narrow mini nano-start d=256 layers=4 heads=3 kv_heads=1 hidden=896 block=2048

The first argument is a bundle of the student's vocabulary, by name or folder. The second is the folder of a net to
write (checkpoint.py), for `start` in the configuration of the run. Then come sizes, as in [student], and `seed`. Tokens
that the wider bundle holds to be alike start alike, so the student need not learn that again. `nano` began so: 4 to 6 %
fewer bits after 28 seconds of training than from random weights (experiments/LOG.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from pltz.plt_codec import UsageError
from pltz.training.nets import checkpoint
from pltz.training.nets.checkpoint import Floats, NetConfig, NetShape, Rounded
from pltz.training.nets.net import Net, rounded_net
from pltz.training.nets.origin import Origin


def projected(table: Floats, d: int) -> Floats:
    """Return rows (V, d) float32 of length sqrt(d): the rows of `table` (V, n) in the d directions that hold most.

    Raises:
        UsageError: d is larger than n.
    """
    if d > table.shape[1]:
        raise UsageError(f"expected a width of at most {table.shape[1]}, that of the bundle, found {d}")
    rows = checkpoint.unit(table.astype(np.float64))
    _, _, directions = np.linalg.svd(rows.T @ rows)  # symmetric: rows in falling order of what they hold
    out: Floats = checkpoint.unit(rows @ directions[:d].T).astype(np.float32)
    return out


def narrow(table: Floats, config: NetConfig, seed: int) -> Rounded:
    """Return a net of contract 1 with random layers, and its table (V, d) projected from `table` (V, n).

    Raises:
        UsageError: the vocabularies differ, or the net is gated or not narrower.
    """
    if config.gated or config.vocab != len(table):
        raise UsageError(f"expected a net that is not gated, of {len(table)} ids, that of the bundle")
    torch.manual_seed(seed)
    net = Net(config)
    with torch.no_grad():  # shorter rows turn faster (Rounded.floats)
        net.embed.copy_(torch.from_numpy(projected(table, config.d)) * 0.5)
    return rounded_net(net)


def main(arguments: Sequence[str]) -> None:
    """See the head of this file.

    Raises:
        UsageError: an argument is of no use, or the output exists.
    """
    if len(arguments) < 2:
        raise UsageError("usage: python -m pltz.training.nets.narrow BUNDLE OUTPUT [SIZE=NUMBER ...]")
    output, sizes = Path(arguments[1]), {"seed": 1}
    if output.exists():
        raise UsageError(f"{output} exists: choose another output")
    known = [f.name for f in fields(NetShape) if f.type == "int"]
    for argument in arguments[2:]:
        name, _, number = argument.partition("=")
        if name not in (*known, "seed") or not number.isdecimal():
            raise UsageError(f"{argument}: expected one of {', '.join(known)} or seed, = and a whole number")
        sizes[name] = int(number)
    seed = sizes.pop("seed")
    table = Origin(arguments[0], "BUNDLE").net.floats()["embed"]
    config = NetConfig.read({**NetConfig().to_dict(), **sizes, "vocab": len(table)})
    net = narrow(table, config, seed)
    output.mkdir(parents=True)
    checkpoint.write(net, output)


if __name__ == "__main__":
    main(sys.argv[1:])
