"""Run several agents over several phases: each keeps its KV as its working memory, over a restart, too.

See docs/memory.md.

    python examples/agent_memory.py                              # the target that ships with pltz, on the CPU
    python examples/agent_memory.py --target ./my-model --kind q4 --new 64

Two suspects are asked apart, meet in the yard, and decide; a warden asks them and hears all. The process "restarts"
before the last phase. Prints what was said, and one JSON line: how many ids had KV, and how many were run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import pltz

ROLES = {
    "warden": "You are the warden. You ask two suspects, Ann and Bob, about a theft. Be short.\n",
    "ann": "You are Ann, a suspect. The warden asks you about a theft. Bob was with you. Be short.\n",
    "bob": "You are Bob, a suspect. The warden asks you about a theft. Ann was with you. Be short.\n",
}
PHASES = (
    {"ann": "Warden: Where were you last night?\nAnn:", "bob": "Warden: Where were you last night?\nBob:"},
    {"ann": "In the yard, Bob says: {bob}\nAnn:", "bob": "In the yard, Ann says: {ann}\nBob:"},
    {"warden": "Ann said: {ann}\nBob said: {bob}\nWarden: I think that"},
    {"ann": "The warden says: {warden}\nAnn, do you confess?\nAnn:", "bob": "The warden says: {warden}\nBob:"},
)


def run(target: pltz.Target, folder: Path, kind: str, new: int, *, restart: bool = True) -> dict[str, Any]:
    """Run all phases, with a restart before the last one, and return what was said and counted."""
    said = dict.fromkeys(ROLES, "nothing")
    count = {"reused": 0, "run": 0}
    log: list[tuple[int, str, str]] = []
    memory = pltz.AgentMemory.open(folder, target, kind, tokens=8192)
    for number, phase in enumerate(PHASES):
        if restart and number == len(PHASES) - 1:
            memory.close()
            memory = pltz.AgentMemory.open(folder, target, kind, tokens=8192)
        known = set(memory.agents())
        texts = {
            agent: ("\n" if agent in known else ROLES[agent]) + text.format(**said)
            for agent, text in phase.items()
        }
        replies = memory.many(texts, new, min_new_tokens=new)  # all agents of a phase as one batch
        for agent, reply in replies.items():
            said[agent] = " ".join(reply.text.split())
            log.append((number, agent, reply.text))
            count["reused"] += reply.reused
            count["run"] += reply.prefilled
    memory.close()
    files = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    return {"said": log, **count, "file_bytes": files}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run several agents over several phases.")
    parser.add_argument("--target", default="mini-llama", help="a folder, or a name that ships with pltz")
    parser.add_argument("--kind", default="q4", choices=["raw", "q8", "q4"], help="of the pages")
    parser.add_argument("--new", type=int, default=24, help="ids of a reply")
    chosen = parser.parse_args()
    target = pltz.Target.load(chosen.target, dtype="float32")
    with tempfile.TemporaryDirectory(prefix="pltz-agents-") as folder:
        found = run(target, Path(folder), chosen.kind, chosen.new)
    for phase, agent, text in found.pop("said"):
        print(f"{phase + 1} {agent}: {' '.join(text.split())}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
