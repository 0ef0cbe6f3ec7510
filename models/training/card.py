"""Write the model card of a bundle from measured figures: card.json for programs, CARD.md for people.

    pltz bench codec --data chat_test.jsonl.zst --limit-bytes 300000 --json > bench.json     # or: pltz bundle eval
    python -m pltz.models.training.card --bundle models/bundles/mini --bench bench.json --training training.json

training.json records the runs: the last line that train.py printed for each, and the later steps. Every
figure of the card comes from these two files and the bundle itself. Sizes are of sessions that were decoded
back and compared. sources.json names the data's sources and licences.

That is for the bundles that ship. `own_card` and `own_markdown` are for those of `pltz bundle train`
(pipeline.py), from its settings and stages.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.weights import Weights

SOURCES = Path(__file__).with_name("sources.json")
LICENCE = "CC-BY-SA-4.0"
CHOSEN = (
    "benchmark",
    "sources",
    "total",
    "limit_bytes",
    "file_bytes",
    "encode_tokens_per_s",
    "decode_tokens_per_s",
    "machine",
    "layout",
)


def card(bundle: Bundle, bench: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the card, as JSON.

    Raises:
        SystemExit: the figures are of another bundle.
    """
    if bench["bundle"] != bundle.id.hex():
        raise SystemExit(
            f"bench.json is of bundle {bench['bundle']}, this one is {bundle.id.hex()}: run the benchmark again"
        )
    return {
        "name": bundle.name,
        "id": bundle.id.hex(),
        "contract": bundle.contract,
        "licence": LICENCE,
        "shape": bundle.weights.shape.to_dict(),
        "multiply_adds_a_token": bundle.weights.shape.macs,
        "training": training,
        "test": {k: bench[k] for k in CHOSEN},
        "data": json.loads(SOURCES.read_text("utf8")),
    }


def as_markdown(c: dict[str, Any]) -> str:
    """Return the card for people."""
    s, total, t = c["shape"], c["test"]["total"], c["training"]
    machine = c["test"]["machine"]
    lines = [
        f"# Bundle `{c['name']}`",
        "",
        (f"Id `{c['id']}`, numeric contract {c['contract']}. A decoder bundle of pltz: tokenizer, integer "
        "language model and fallback dictionary that"),
        "turn LLM sessions into bits and back, exactly. It is not a chat model; use it with pltz only.",
        "",
        "## Model",
        "",
        (
            f"Llama-style transformer in integers (`plt_codec/NUMERICS.md`): width {s['d']}, {s['layers']} "
            f"layers, {s['heads']} query and {s['kv_heads']} key heads of "
            f"{s['head_dim']}, hidden {s['hidden']}, vocabulary {s['vocab']:,} in {s['vocab'] // 128} "
            f"classes, blocks of {s['block']} tokens, memory {s['memory']}. "
            f"{c['multiply_adds_a_token'] / 1e6:.2f} M multiply-adds a token outside attention, head "
            "included. Weights "
            f"int8{', few of the 255 values used: 4 bits each once packed' if s.get('gated') else ''}."
        ),
        "",
        "## Training",
        "",
        (
            f"{t['tokens'] / 1e6:,.0f} M tokens, {t['seconds']:,.0f} seconds of an H200 in {len(t['runs'])} "
            f"run{'s' * (len(t['runs']) > 1)}, rounding in the loop from the first step, "
            "a mix of lane layouts (`models/training/`, `models/LOG.md`)."
            + (
                " Validation, ideal code length of the last run's float model: "
                f"{t['validation_bits_per_byte']:.4f} bits a byte."
                if "validation_bits_per_byte" in t
                else ""
            )
        ),
        "",
        *(
            f"- run {r['name']}: " + ", ".join(f"{k} {v}" for k, v in r.items() if k != "name")
            for r in t["runs"]
        ),
        *(f"- then: {line}" for line in t["after"]),
        *(
            [f"- began as {t['start']['model']} ({t['start']['file']}), licence {t['start']['licence']}"]
            if "start" in t
            else []
        ),
        "",
        "## Test",
        "",
        (
            f"Chat test split, at most {c['test']['limit_bytes']:,} bytes of content a source, sessions it "
            "never saw, each decodable alone, default layout. Bytes are those of one real "
            ".pltz file (header, index and checks included, shared out evenly), decoded back and compared. "
            "Measured with `pltz "
            f"{'bundle eval' if c['test']['benchmark'] == 'bundle eval' else 'bench codec'}` on "
            f"{machine['cpu'] if machine['device'] == 'cpu' else machine['device']}, engine "
            f"{machine['engine']}; peers in the same run: {', '.join(total['peer_bytes'])}."
        ),
        "",
        ("| source | sessions | content bytes | pltz bytes | bits a byte | bits a token | zstd -19 + "
        "dictionary | best peer | pltz : best peer | by fallback |"),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in [*c["test"]["sources"], total]:
        zstd = r["peer_bytes"]["zstd+dict"]
        best = r["peer_bytes"][r["best_peer"]]
        lines.append(
            f"| {r['source']} | {r['sessions']:,} | {r['content_bytes']:,} | {r['pltz_bytes']:,.0f} | "
            f"{r['bits_per_byte']:.3f} | {r['bits_per_token']:.2f} | "
            f"{8 * zstd / r['content_bytes']:.3f} | {r['best_peer']} {8 * best / r['content_bytes']:.3f} | "
            f"{r['pltz_bytes'] / best:.3f} | {r['fallback_sessions']} |"
        )
    lines += [
        "",
        (f"Over the model's own ideal code length the coder spends {100 * total['coder_overhead']:.3f} %; "
        "beside the frames a session costs "
        f"{total['frame_overhead_bytes']:.2f} bytes."),
        "",
        "## Limits",
        "",
        ("Trained on English chats mostly, some code and documents, few other languages: on other text it "
        "degrades, and pltz falls back to zstd with the bundle's"),
        ("dictionary where that is shorter. Part of the training data is offensive or wrong; the model "
        "writes nothing by itself."),
        "",
        "## Licence and data",
        "",
        (f"Weights, tokenizer and dictionary: {c['licence']}, because part of the data is under "
        "CC-BY-SA-4.0, and the dictionary holds short excerpts of the training data."),
        "Attribution, licences as stated in each repository:",
        "",
        "| source | kind | repository @ commit | licence |",
        "|---|---|---|---|",
        *(f"| {d['source']} | {d['kind']} | {d['repository']} | {d['licence']} |" for d in c["data"]),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def own_card(
    head: dict[str, Any],
    weights: Weights,
    settings: dict[str, Any],
    facts: dict[str, Any],
    training: dict[str, Any],
    figures: dict[str, Any],
) -> dict[str, Any]:
    """Return the card of a bundle that `pltz bundle train` made, as JSON.

    Args:
        head: its bundle.json.
        weights: its weights.
        settings: the whole configuration.
        facts: sessions and licences by source.
        training: the report of each training stage.
        figures: of the test sessions.
    """
    told = settings["card"]["sources"]
    sources = [
        {
            "source": source,
            "sessions": found["sessions"],
            "licence": ", ".join(found["licences"] or [told.get(source, "not stated")]),
        }
        for source, found in sorted(facts.items())
    ]
    return {
        "name": head["name"],
        "id": head["id"],
        "contract": head["contract"],
        "licence": settings["card"]["licence"],
        "about": settings["card"]["about"],
        "shape": head["shape"],
        "multiply_adds_a_token": weights.shape.macs,
        "training": training,
        "settings": settings,
        "test": figures,
        "data": sources,
    }


def own_markdown(c: dict[str, Any]) -> str:
    """Return the card of `own_card` for people."""
    s, test = c["shape"], c["test"]
    rows = [
        f"| {r['source']} | {r['sessions']:,} | {r['content_bytes']:,} | {r['pltz_bytes']:,.0f} | "
        f"{r['bits_per_byte']} | {r['bits_per_token']} | "
        f"{_rate(r, 'zstd+dict')} | {r['fallback_sessions']} |"
        for r in [*test["sources"], test["total"]]
    ]
    runs = [
        f"- {name}: {r['steps']:,} steps, {r['tokens']:,} tokens, {r['seconds']:,.0f} seconds, "
        f"{r['parameters'] / 1e6:.2f} M parameters, "
        f"{r['bits_per_token']} bits a token at the end (training data, float model)"
        for name, r in c["training"].items()
        if "steps" in r
    ]
    teacher = c["settings"]["teacher"]
    if teacher:
        who = f"the target {teacher['target']}" if teacher["target"] else "a larger net of its own"
        runs.append(
            f"- teacher: {who}, {teacher['share']} of the loss"
            + (f"; it wrote {teacher['write']} turns" if teacher["write"] else "")
        )
    return "\n".join([
        f"# Bundle `{c['name']}`",
        "",
        f"Id `{c['id']}`, numeric contract {c['contract']}, licence: {c['licence']}. {c['about']}".strip(),
        "",
        "## Model",
        "",
        (f"Width {s['d']}, {s['layers']} layers, {s['heads']} query and {s['kv_heads']} key heads of "
        f"{s['head_dim']}, hidden {s['hidden']}, vocabulary {s['vocab']:,}, blocks of"),
        (f"{s['block']} tokens, memory {s['memory']}; {c['multiply_adds_a_token'] / 1e6:.2f} M multiply-adds "
        "a token outside attention. Weights int8."),
        "",
        "## Training",
        "",
        *runs,
        "",
        "The settings are in card.json.",
        "",
        "## Test",
        "",
        (f"Held-out sessions, at most {test['limit_bytes']:,} bytes of content a source, each decodable "
        "alone, all bytes of a .pltz file counted, decoded back and compared."),
        "",
        ("| source | sessions | content bytes | pltz bytes | bits a byte | bits a token | zstd -19 + "
        "dictionary | by fallback |"),
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "## Data",
        "",
        "| source | sessions (train, validation, test) | licence |",
        "|---|---|---|",
        *(
            f"| {d['source']} | "
            f"{', '.join(str(d['sessions'].get(part, 0)) for part in ('train', 'validation', 'test'))} | "
            f"{d['licence']} |"
            for d in c["data"]
        ),
        "",
    ])  # fmt: skip


def _rate(r: dict[str, Any], peer: str) -> str:
    """Return the bits per byte of a peer, - where it was not measured."""
    size = r["peer_bytes"].get(peer)
    return f"{8 * size / r['content_bytes']:.3f}" if size is not None and r["content_bytes"] else "-"


def main() -> None:
    """Run the command line described at the top of this file."""
    p = argparse.ArgumentParser()
    p.add_argument("--bundle", type=Path, required=True)
    p.add_argument("--bench", type=Path, required=True)
    p.add_argument("--training", type=Path, required=True)
    a = p.parse_args()
    made = card(Bundle.load(a.bundle), json.loads(a.bench.read_text()), json.loads(a.training.read_text()))
    (a.bundle / "card.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    (a.bundle / "CARD.md").write_text(as_markdown(made))


if __name__ == "__main__":
    main()
