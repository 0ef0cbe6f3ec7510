"""Freeze a session of a running llama-server and bring it back: by token ids, through the archive.

See docs/llama-server.md.

    llama-server -m MODEL.gguf --slot-save-path /tmp/slots/
    python examples/llama_server.py http://127.0.0.1:8080 TOKENIZER.json --slots /tmp/slots

Prints one JSON line: sizes, times, and whether the session goes on as if nothing had been.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import pltz

GREEDY = {"temperature": 0, "ignore_eos": True}  # so that two runs can be compared


def prompt(server: pltz.LlamaServer, tokens: int) -> list[int]:
    """Return a chat of about so many tokens, from the sessions that ship with pltz, in the model's own template."""
    texts = [
        message["content"] for session in pltz.sample_sessions() for message in session.value["messages"]
    ]
    ids = server.render([{"role": "user", "content": "\n".join(texts)[: 6 * tokens]}])
    return [int(i) for i in [*ids[: tokens - 8], *ids[-8:]]]


def main(url: str, tokenizer: Path, slots: Path | None, tokens: int, folder: Path) -> None:
    server = pltz.LlamaServer(url)
    ids = prompt(server, tokens)
    whole = server.complete(ids, slot=1, n_predict=64, **GREEDY)  # what it would have said, for comparison
    half = server.complete(ids, slot=0, n_predict=32, **GREEDY)

    # The session goes cold: its ids to the hook, from there to the archive, and the slot is free for others.
    with pltz.EvictionHook.open(folder / "journal", tokenizer=tokenizer) as hook:
        hook.on_evict(server.evicted(half, "chat-7", tenant="acme"))
    cold = pltz.Archive.open(folder / "archive", create=True, tokenizers=[tokenizer])
    frozen = pltz.drain(folder / "journal", cold)
    kv = slot_bytes(server, slots) if slots else None
    server.erase(0)

    # It is asked for again: decode, one prefill, and on it goes.
    start = time.perf_counter()
    found = cold.get("chat-7", tenant="acme")
    decoded = time.perf_counter()
    hot = server.thaw(found.ids, slot=0, frozen_for=found.target)
    rest = server.complete(found.ids, slot=0, n_predict=32, **GREEDY)
    report = {
        "tokens": len(found.ids),
        "frozen_bytes": frozen.frozen,
        "slot_file_bytes": kv,
        "decode_ms": round(1e3 * (decoded - start), 1),
        "prefill_ms": round(hot.prefill_ms, 1),
        "thaw_ms": round(1e3 * (decoded - start) + hot.total_ms, 1),
        "hot_for_next": rest.cached,
        "goes_on_the_same": rest.ids.tolist() == whole.ids.tolist(),
    }
    print(json.dumps(report))


def slot_bytes(server: pltz.LlamaServer, folder: Path) -> int:
    """Return the bytes of the server's own slot file of the session."""
    server._call("/slots/0?action=save", {"filename": "example.bin"})
    size = (folder / "example.bin").stat().st_size
    (folder / "example.bin").unlink()
    return size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("tokenizer", type=Path, help="the model's tokenizer.json")
    parser.add_argument("--slots", type=Path, help="the server's --slot-save-path, to compare sizes")
    parser.add_argument("--tokens", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(options.url, options.tokenizer, options.slots, options.tokens, Path(folder))
