"""Reports of made-up nights, to draw pages of as many runs as a test wants."""

from typing import Any

START, DAY = 1_767_320_000, 86_400  # 2026-01-02 02:13 UTC
REFUSED = {
    "id": "0" * 32,
    "source": "chats",
    "where": "a.jsonl:8",
    "name": "chat-8",
    "tenant": "acme",
    "error": "OpaqueContentError",
    "reason": 'message 2 holds a part of type "image_url", and only text is coded',
    "bytes": 120,
}


def night(run: int, *, exit_code: int = 0, refused: int = 0, failures: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the report of the ``run``-th night, of 40 sessions that grow in number."""
    frozen = 40 + run
    totals: dict[str, Any] = {"known": 100 * run, "frozen": frozen, "refused": refused}
    totals |= {"seen": frozen + 100 * run + refused, "bytes": 4000 * frozen, "frozen_bytes": 400 * frozen}
    totals |= {"ratio": 10.0, "seconds": 2.0 + run / 10}
    steps = {"freeze": 2.0 + run / 10, "retention": 0.2, "collect": 0.4, "verify": 1.0 + (run % 7) / 4}
    archive = {"place": "/data/cold", "packs": run, "sessions": 40 * run, "pack_bytes": 16_000 * run}
    return {
        "run": run,
        "started": START + DAY * run,
        "seconds": sum(steps.values()),
        "archive": archive | {"index_bytes": 900},
        "totals": totals | {"lag_mean": 7200.0, "lag_max": 30_000.0},
        "sources": [{"name": "chats", "kind": "jsonl", **totals}],
        "retention": {"versions": 40 * run, "forgotten": run},
        "merge": None,
        "cluster": {"tenants": 2, "sessions": 40 * run, "medoids": 9, "file_bytes": 2700},
        "collect": {"deleted": 1, "freed": 12_000, "condemned": 2},
        "verify": {"sound": exit_code != 3, "packs": 8, "decoded": 120, "problems": [], "lost": []},
        "steps": {name: {"seconds": seconds} for name, seconds in steps.items()},
        "refused": [REFUSED] * refused,
        "failures": list(failures),
        "peak_memory_mb": 336.2,
        "exit_code": exit_code,
        "so_far": {"since": START + DAY, "bytes": 200_000 * run, "frozen_bytes": 20_000 * run},
    }
