"""Digests: the names of what training makes, after what it was made from.

    digest(["corpus", 3, digest_files(["chats.jsonl"])])      # 16 hex digits

Stages are found again by them, so a run that was killed goes on, and a changed file makes its stages anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pltz.plt_codec import UsageError


def digest(key: Any) -> str:
    """Return 16 hexadecimal digits of any JSON value."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def digest_files(paths: list[str]) -> list[list[Any]]:
    """Return [name, digest] of every file; a folder counts with all files in it.

    Raises:
        UsageError: a file is missing.
    """
    digests: list[list[Any]] = []
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise UsageError(f"expected a file or a folder, found nothing at {name}")
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            with file.open("rb") as f:
                content = hashlib.file_digest(f, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
                digests.append([file.name, content])
    return digests
