"""Measure slot files of bots against one base and deltas, on a running llama-server.

    python -m pltz.experiments.slots.measure_slots http://127.0.0.1:8080 SLOTS mini-llama

As in Towers of Segments, section 8.1: the platform's slot is saved, restored, extended by each community's prompt and
saved again, and each bot's slot begins with its community's. Every bot's slot is spliced from platform and deltas and
compared with the file.
"""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import click
import numpy as np

from pltz.cli.bench import machine
from pltz.datasets.loaders import sample_sessions
from pltz.experiments.communities.communities import BOTS
from pltz.experiments.deployment import Deployment
from pltz.experiments.slots.slot_delta import delta, splice
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ModelError
from pltz.serving.engines.llama_server import LlamaServer

SLOT = 0


def act(url: str, action: str, name: str) -> None:
    """Save a server's slot 0 to a file of its folder, or restore it: ``action`` save or restore."""
    body = json.dumps({"filename": name}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/slots/{SLOT}?action={action}", body, headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        reply.read()


@click.command()
@click.argument("url")
@click.argument("slots")
@click.argument("model")
@click.option("--bots", "counts", default=(1, 10, 100), type=int, multiple=True, metavar="N", help="Bots (repeatable).")
@click.option("--communities", default=10, show_default=True, metavar="N", help="Communities.")
@click.option("--platform", default=1024, show_default=True, metavar="N", help="Tokens of the platform's prompt.")
def main(url: str, slots: str, model: str, counts: tuple[int, ...], communities: int, platform: int) -> None:
    """Print one line of JSON. MODEL: the served model as a target of pltz, for its tokens."""
    target, server, folder = Target.load(model), LlamaServer(url), Path(slots)
    here = Deployment.made(
        target, sample_sessions()[:1], communities=communities, bots=min(max(counts), BOTS), count=1, platform=platform
    )

    def saved(name: str, ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]], below: str | None) -> bytes:
        """Return the slot file of ids that begin with those of the slot file ``below``."""
        if below is not None:
            act(url, "restore", below)
        server.thaw(ids, slot=SLOT, any_target=True)
        act(url, "save", name)
        return (folder / name).read_bytes()

    base = saved("platform.bin", here.platform, None)
    whole, kept, bots, rows = len(base), len(base), 0, []
    middle: dict[int, tuple[bytes, bytes, str]] = {}
    splice_s: list[float] = []
    for bot, own in enumerate(here.bots):
        number = here.community_of_bot(bot)
        prompt = np.concatenate([here.platform, here.communities[number]])
        if number not in middle:
            name = f"community-{number}.bin"
            above = saved(name, prompt, "platform.bin")
            middle[number] = above, delta(base, above), name
            whole, kept = whole + len(above), kept + len(middle[number][1])
        above, step, name = middle[number]
        file = saved("bot.bin", np.concatenate([prompt, own]), name)
        last = delta(above, file)
        began = time.perf_counter()
        again = splice(splice(base, step), last)
        splice_s.append(time.perf_counter() - began)
        if again != file:
            raise ModelError(f"the slot of bot {bot} did not come back")
        whole, kept, bots = whole + len(file), kept + len(last), bots + 1
        if bots in counts:
            rows.append({"bots": bots, "communities": len(middle), "plain": whole, "kept": kept})
    result = {
        "benchmark": "slots", "target": Path(model).name, "platform_tokens": len(here.platform), "rows": rows,
        "splice_ms": 1e3 * float(np.median(splice_s)), "machine": machine.describe(None, "cpu", None),
    }  # fmt: skip
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
