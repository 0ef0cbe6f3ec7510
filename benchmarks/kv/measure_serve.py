"""Measure `pltz serve`: tokens per second and time to the first token, beside plain `generate` of transformers.

    python -m pltz.benchmarks.kv.measure_serve                                   # mini-llama
    python -m pltz.benchmarks.kv.measure_serve --model ./smollm2 --clients 1 8 --dtype float32

The server is a process of its own with a fresh archive. Each client is a session: it sends a prompt and reads the
stream to its end, which comes when the turn is durable. All begin at once. Then the same prompts are given to
`generate` in this process: one after the other, and as one batch without streams, sessions or durability, which bounds
what any server can reach. Both sides use the same number of threads, one after the other.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pltz.archive.archive import Archive
from pltz.datasets import sample_sessions
from pltz.models.target.target import Target

PROGRAM = "from pltz.cli.main import main; main()"


def prompts_of(target: Target, count: int, tokens: int) -> list[str]:
    """Return texts of about ``tokens`` tokens, each from another sample session."""
    found: list[str] = []
    for session in sample_sessions():
        text = json.dumps(session.value, ensure_ascii=False) if session.kind == "chat" else str(session.value)
        ids = target.tokenize(text)[:tokens]
        if len(ids) == tokens:
            found.append(target.decode(ids))
        if len(found) == count:
            break
    return [found[n % len(found)] for n in range(count)]


@contextmanager
def server(model: str, folder: Path, options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Run a server on a fresh archive, and yield its port and process id."""
    place = folder / "cold"
    Archive.open(place, create=True, bundle="nano").close()
    words = ["serve", model, "--archive", str(place), "--port", "0", "--json", "--bundle", "nano", *options]
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield int(json.loads(child.stdout.readline())["url"].rpartition(":")[2]), child.pid
    finally:
        child.terminate()
        child.wait(300)


def ask(port: int, prompt: str, session: str, new: int) -> tuple[float, float, int]:
    """Send one prompt. Returns seconds to the first piece and to the end, and the number of new tokens."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"prompt": prompt, "max_tokens": new, "temperature": 0, "session": session, "stream": True}
    body["stream_options"] = {"include_usage": True}
    begun, first, count = time.perf_counter(), 0.0, 0
    link.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = link.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    for line in answer:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - begun
            count = (json.loads(line[6:]).get("usage") or {}).get("completion_tokens", count)
    link.close()
    return first, time.perf_counter() - begun, count


def served(port: int, prompts: Sequence[str], new: int) -> dict[str, Any]:
    """Measure clients that begin at once."""
    found: list[tuple[float, float, int]] = []
    run = f"{time.time_ns()}"
    talkers = [
        threading.Thread(target=lambda n=n, text=text: found.append(ask(port, text, f"{run}/{n}", new)))
        for n, text in enumerate(prompts)
    ]
    begun = time.perf_counter()
    for talker in talkers:
        talker.start()
    for talker in talkers:
        talker.join()
    seconds = time.perf_counter() - begun
    if len(found) != len(prompts):
        raise RuntimeError(f"{len(prompts) - len(found)} clients failed")
    return {
        "tokens_per_second": sum(one[2] for one in found) / seconds,
        "first_token_seconds": statistics.median(one[0] for one in found),
        "tokens": sum(one[2] for one in found),
    }


def generated(target: Target, prompts: Sequence[str], new: int, rows: int) -> float:
    """Return the tokens per second of `generate` over batches of ``rows`` prompts of equal length."""
    import torch

    ids = [target.tokenize(text) for text in prompts]
    size = min(map(len, ids))
    begun, count = time.perf_counter(), 0
    for at in range(0, len(ids), rows):
        batch = torch.tensor([one[:size] for one in ids[at : at + rows]])
        words = {"attention_mask": torch.ones_like(batch), "pad_token_id": 0, "do_sample": False}
        out = target.model.generate(batch, max_new_tokens=new, min_new_tokens=new, **words)
        count += (out.shape[1] - size) * len(batch)
    return count / (time.perf_counter() - begun)


def main() -> None:
    """Measure, and print one line of JSON per number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-llama")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128, metavar="TOKENS")
    parser.add_argument("--new", type=int, default=32, metavar="TOKENS")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pages", default="raw")
    chosen = parser.parse_args()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    target = Target.load(chosen.model, dtype=chosen.dtype)
    prompts = prompts_of(target, max(chosen.clients), chosen.prompt)
    options = ("--dtype", chosen.dtype, "--pages", chosen.pages, "--tokens", "32768", "--hot", "64")
    rows = []
    with tempfile.TemporaryDirectory() as folder, server(chosen.model, Path(folder), options) as (port, _):
        served(port, prompts[:1], chosen.new)  # the first pass is slower
        for count in chosen.clients:
            rows.append({"clients": count} | served(port, prompts[:count], chosen.new))
    generated(target, prompts[:1], chosen.new, 1)
    for row in rows:
        some = prompts[: int(row["clients"])]
        row["one_by_one"] = generated(target, some[:8], chosen.new, 1)
        row["one_batch"] = generated(target, some, chosen.new, len(some))
        row |= {"model": chosen.model, "pages": chosen.pages, "threads": threads}
        print(json.dumps({key: round(one, 3) if isinstance(one, float) else one for key, one in row.items()}))


if __name__ == "__main__":
    main()
