"""Measure the memory of `pltz serve` over many sessions, which come and go cold.

    python -m pltz.benchmarks.kv.measure_sessions                  # 12,000 sessions of mini-llama
    python -m pltz.benchmarks.kv.measure_sessions --sessions 2000 --prompt 64 --disk

Each session has one turn of a prompt of its own, and goes cold after `--idle` seconds. Resident memory of the server's
process is read at every tenth of them, and again when all are cold. The last line is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

from pltz.benchmarks.kv.measure_serve import server

CLIENTS = 16
HERE = local()


def resident(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def ask(port: int, method: str, path: str, body: object = None) -> dict[str, object]:
    """Return the answer of a request over this thread's connection. Raises OSError and AssertionError."""
    link = getattr(HERE, "link", None) or http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    HERE.link = link
    link.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
    answer = link.getresponse()
    found: dict[str, object] = json.loads(answer.read())
    assert answer.status == 200, found
    return found


def turn(port: int, number: int, tokens: int) -> None:
    """Run the turn of a session."""
    prompt = [5 + (number * 7919 + n * 31) % 9000 for n in range(tokens)]
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "session": f"s/{number}"}
    ask(port, "POST", "/v1/completions", body)


def main() -> None:
    """Print resident memory by sessions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="mini-llama")
    parser.add_argument("--sessions", type=int, default=12_000)
    parser.add_argument("--prompt", type=int, default=16, help="tokens")
    parser.add_argument("--idle", type=float, default=2.0)
    parser.add_argument("--disk", action="store_true", help="keep KV in files, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        more = ["--disk", f"{folder}/kv", "--disk-bytes", "2000000000"] if given.disk else []
        words = ["--idle", str(given.idle), "--tokens", "4096", "--dtype", "float32", *more]
        with server(given.model, Path(folder), words) as (port, pid), ThreadPoolExecutor(CLIENTS) as clients:
            rows, done, begun = [], 0, time.monotonic()
            for goal in sorted({given.sessions * tenth // 10 for tenth in range(1, 11)}):
                list(clients.map(lambda number: turn(port, number, given.prompt), range(done, goal)))
                done = goal
                rows.append({"sessions": done, "rss_mb": round(resident(pid), 1), "s": round(time.monotonic() - begun)})
                print(rows[-1], flush=True)
            while (tiers := ask(port, "GET", "/sessions")["tiers"]) and tiers["journal"] + tiers["hot"]:  # type: ignore[index]
                time.sleep(1)
            rows.append({"sessions": done, "all_cold": True, "rss_mb": round(resident(pid), 1)})
            print(json.dumps({"model": given.model, "disk": given.disk, "tiers": tiers, "rows": rows}))


if __name__ == "__main__":
    main()
