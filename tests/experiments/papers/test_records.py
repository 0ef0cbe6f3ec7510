"""records: the recorded figures are those of the files of results that they name."""

import json
from pathlib import Path
from typing import Any

from pltz.experiments.papers import records
from pltz.experiments.papers.row import PAPERS, VERDICTS

ROOT = Path(__file__).resolve().parents[3]


def kept(name: str) -> Any:
    """Return the first JSON document of a file of results."""
    text = (ROOT / "benchmarks/results" / name).read_text()
    return json.JSONDecoder().raw_decode(text[text.index("{") :])[0]


def test_recorded_figures_are_those_of_the_kept_results() -> None:
    said = " ".join(row.measured for row in records.RECORDED)
    for row in records.RECORDED:
        assert row.paper in PAPERS and row.verdict in VERDICTS
        assert row.recorded is None or (ROOT / row.recorded.source).is_file()
    thaw = kept("thaw.json")
    ways = {row["way"]: row for row in thaw["rows"]}
    decode = [thaw[name]["decode"] for name in ("stages_ms", "fast_stages_ms")]
    assert f"decode {decode[0]:.1f} ms, {decode[1]:.1f} in" in said
    assert f"{ways['thaw']['stored_bytes']:,} bytes" in said and f"{ways['thaw, fast layout']['ms']:.1f} ms" in said
    attention = {row["attention"]: row for row in lines("pool.json") if row.get("kind") == "q4" and "attention" in row}
    alone, many = (attention[name]["of_bf16"] for name in ("1 session, 4k", "32 sessions, 16k"))
    assert f"{alone:.2f} of bf16's speed with 1 session of 4,096 tokens, {many:.2f} with 32 of 16,384" in said
    moves = [[row["of_bus"] for row in lines("pool.json") if row.get("move") == way] for way in ("warm", "spill")]
    (warm, warmest), (spill, spilt) = ((min(some), max(some)) for some in moves)
    assert f"{warm:.2f} to {warmest:.2f} of a plain copy's 53 to 55 GB/s, spilling {spill:.2f} to {spilt:.2f}" in said
    slots = [f"{100 * row['kept'] / row['plain']:.1f}" for row in kept("slots.json")["rows"]]
    assert "{}, {} and {} %".format(*slots) in said
    device = {row["way"]: row["ms"] for row in kept("kv_device.json")["rows"]}
    assert f"{device['raw, device']:.1f} ms on the device; {device['raw, host']:.1f} ms raw" in said
    for source, row in {row["source"]: row for row in kept("neighbours_communities.json")["sources"]}.items():
        assert f"{row['best'] / row['sessions']:.0f}" in said, source
    library = kept("neighbours_mini_train.json")["sources"]
    assert f"{sum(row['best'] for row in library) / sum(row['alone'] for row in library):.3f} of their bytes" in said
    fused = kept("joint.json")
    served = {row["threshold"]: row for row in fused["served"]}
    speed = {name: row["tokens_per_s"] / served["unfused"]["tokens_per_s"] for name, row in served.items()}
    high = served["0.8"]
    assert f"{high['sessions']} sessions for {fused['room']}, {speed['0.8']:.2f} times the tokens" in said
    assert f"KL {high['kl']:.3f}; 0.95: {served['0.95']['sessions']} and {speed['0.95']:.2f} times" in said
    assert f"{speed['plain pages']:.2f} times with {served['plain pages']['sessions']}" in said
    bits = {(row["strategy"], row["threshold"]): row for row in fused["fused"]}["bff", "0.7"]
    forms = {row["form"]: row for row in fused["forms"]}
    assert f"{bits['bits']:.1f} bits per number at KL {bits['kl']:.3f}; q4 {forms['q4']['bits']:.1f} at" in said
    assert f"predictive {forms['predictive -36']['bits']:.1f} at {forms['predictive -36']['kl']:.4f}" in said
    compose = {(row["form"], row["repair"]): row["kl"] for row in kept("compose.json")["settings"]}
    assert f"{compose['raw', '0%']:.4f} without" in said and f"{compose['raw', '15%']:.4f} with 15 %" in said


def lines(name: str) -> list[Any]:
    """Return the lines of JSON of a file of results."""
    return [json.loads(line) for line in (ROOT / "benchmarks/results" / name).read_text().splitlines()]


def test_recorded_networks_are_those_of_the_kept_results() -> None:
    said = " ".join(row.measured for row in records.RECORDED)
    mini, smol = ({row["name"]: row for row in one["decoders"]} for one in lines("universal_decoder.json")[:2])
    kl = {name: f"{mini[name]['loss']['kl']:.3f}" for name in ("narrow", "a quarter copied", "half copied")}
    assert f"KL {kl['narrow']} at {100 * mini['narrow']['share']:.0f} % of the prefill's compute" in said
    assert f"{kl['a quarter copied']} at {100 * mini['a quarter copied']['share']:.0f}, {kl['half copied']} at " in said
    solved = lines("universal_decoder.json")[2]
    other = next(row["kl"] for row in solved["ends"] if row["form"] == "another session")
    assert f"token alone {solved['decoders'][0]['loss']['kl']:.3f}, the KV of another session {other:.3f}" in said
    names = "narrow", "a quarter copied", "half copied"
    told = [f"{smol[name]['loss']['kl']:.3f} at {100 * smol[name]['share']:.0f}" for name in names]
    assert f"SmolLM2-135M: {told[0]} %, {told[1]}, {told[2]};" in said
    (budgets,) = (one for one in lines("learned_budgets.json") if one["target"] == "smollm2")
    codes = {(row["name"], row["ratio"]): row for row in budgets["codes"]}
    for name in ("trained by error, learnt budgets", "trained by KL, learnt budgets", "trained by KL, even"):
        assert ", ".join(f"{codes[name, ratio]['loss']['kl']:.3f}" for ratio in (2, 3, 4)) in said, name
    parts = slice(20, 30), slice(10)
    by_error, by_kl = (
        [sum(map(sum, codes[f"trained by {loss}, learnt budgets", 2]["ranks"][part])) / 10 for part in parts]
        for loss in ("error", "KL")
    )
    assert f"{by_error[0]:.0f} of 384 dimensions, the first ten {by_error[1]:.0f}" in said
    assert f"by KL {by_kl[0]:.0f} and {by_kl[1]:.0f}" in said
