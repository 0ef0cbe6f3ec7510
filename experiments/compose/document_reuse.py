"""Prefill documents once, and use them in any order behind any prompt.

See experiments/compose.md.

    python -m pltz.experiments.compose.document_reuse     # the target that ships with pltz, on the CPU
    python -m pltz.experiments.compose.document_reuse --target ./my-model --repair 0.15

Each question is answered twice: over documents that are moved and repaired, and after a full prefill. Prints one JSON
line: the seconds to the first token of both, and how much the first token's probabilities differ.
"""

from __future__ import annotations

import argparse
import json
import time

import pltz
from pltz.experiments.compose.documents import Documents

SYSTEM = "You answer questions about the papers below. Be short.\n"
QUESTIONS = ("Which one was written first?", "Which of them names a price?")
LONG = 300  # ids of each document


def main() -> None:
    """Answer questions over three documents in two orders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="mini-llama")
    parser.add_argument("--repair", type=float, default=0.15)
    options = parser.parse_args()
    target = pltz.Target.load(options.target, dtype="float32")
    documents = Documents(target)
    texts = ["\n".join(m["content"] for m in one.value["messages"]) for one in pltz.sample_sessions()[:60]]
    ids = target.tokenize("\n".join(texts))
    names = [f"paper {n}" for n in range(3)]
    for n, name in enumerate(names):
        documents.add(name, ids[n * LONG : (n + 1) * LONG])
    prompt = target.tokenize(SYSTEM)
    rows = []
    for order, question in zip((names, names[::-1]), QUESTIONS, strict=True):
        asked = target.tokenize(question)
        began = time.perf_counter()
        found = documents.behind(prompt, order, repair=options.repair)
        _, logits = target.prefill([*found.ids.tolist(), *asked], cache=found.cache(target))
        moved = time.perf_counter()
        _, exact = target.prefill([*found.ids.tolist(), *asked])
        whole = time.perf_counter()
        lost = (exact.softmax(-1) * (exact.log_softmax(-1) - logits.log_softmax(-1))).sum()
        rows.append({
            "order": order, "exact": found.exact, "repaired": found.repaired, "tokens": len(found.ids),
            "moved_s": round(moved - began, 4), "prefill_s": round(whole - moved, 4), "kl": round(float(lost), 5),
        })  # fmt: skip
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
