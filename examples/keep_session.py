"""Put the session that an agent's hook names into an archive, without keeping the agent waiting. See docs/recipes.md.

    python3 keep_session.py ~/cold < hook.json          # of Claude Code: JSON on stdin, with "transcript_path"
    python3 keep_session.py ~/cold '{"thread-id": ...}' # of Codex: JSON as the last argument

Needs nothing but a `pltz` on the path. What that prints is appended to ~/.local/state/pltz/hook.log.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def files_of(event: dict[str, Any]) -> list[Path]:
    """Return the log of an event's session, and the folder with its parts, where there is one."""
    if event.get("transcript_path"):
        log = Path(event["transcript_path"]).expanduser()
        return [path for path in (log, log.with_suffix("")) if path.exists()]
    home = Path(os.environ.get("CODEX_HOME") or "~/.codex").expanduser()
    return sorted(home.glob(f"sessions/**/rollout-*{glob.escape(event['thread-id'])}.jsonl"))


def main() -> None:
    """Start `pltz archive put` in a session of its own: an agent that ends kills what its hook still runs."""
    archive, *given = sys.argv[1:]
    event = json.loads(given[-1] if given else sys.stdin.read())
    files = files_of(event)
    if not files:
        sys.exit(f"keep_session: no log for {event}")
    log = Path("~/.local/state/pltz/hook.log").expanduser()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        put = ["pltz", "archive", "put", "-r", os.path.expanduser(archive), *map(str, files)]
        subprocess.Popen(put, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


if __name__ == "__main__":
    main()
