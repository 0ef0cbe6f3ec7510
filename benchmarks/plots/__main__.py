"""Draw every kept result again.

    python -m pltz.benchmarks.plots

Each file in benchmarks/results holds the lines of JSON of these commands, run on the machine that the line names.
`bench` stands for python -m pltz.benchmarks, `experiments` for python -m pltz.experiments:

    bench speed --threads 1 --rounds 6 --linear 1048576 --llama --engines --startup --json > speed.json
    bench speed --threads 1 --rounds 3 --linear 262144 --llama --engines --startup --json > speed_avx2.json
    bench speed --device cuda --together 1,4,16,1024 --rounds 2 --linear 1048576 --json > speed_cuda.json
    experiments thaw --device cuda --shape llama-8b --json > thaw.json; experiments thaw --json >> thaw.json
    experiments thaw --device cuda --shape llama-8b --turns 1,4,8,40 --json > thaw_turns.json
    experiments archive --full --writers 2 --json > archive.json
    experiments archive --growing --json > archive_growing.json
    bench field --json > field.json, field_sample.json
    bench nightly --full --json > nightly.json
    python -m pltz.experiments.communities.measure_distances > distances.json
    python -m pltz.benchmarks.archive.simulate_scale > scale.json
    python -m pltz.experiments.slots.measure_slots http://127.0.0.1:8080 SLOTS mini-llama > slots.json
    experiments joint --calibration mini-llama.kv.safetensors --rows 16 --context 256 --new 48 ... --json > joint.json
    experiments stack --thaws 8 --json > stack.json
    python -m pltz.benchmarks.kv.measure_kv --calibration smollm2.kv.safetensors --json > kv_device.json
    python -m pltz.benchmarks.kv.measure_first_token smollm2 --turns 0 --rounds 1 --warm-up 0 > first_token.json
    python -m pltz.benchmarks.kv.measure_first_token llama-8b --device cuda --turns 0 ... >> first_token.json
    pltz bundle train --config training/mini.toml ...: the lines of its log.txt, as training_mini.json
    experiments kv --target smollm2 --calibration ... --data chat_test.jsonl.zst --device cuda --json > kv.json
    python -m pltz.experiments.learned_kv decoder mini-llama mini.npz --device cuda --batch 32 > universal_decoder.json
    python -m pltz.experiments.learned_kv decoder smollm2 smollm2.npz --device cuda --batch 16 >> universal_decoder.json
    python -m pltz.experiments.learned_kv decoder ... --seconds 0 >> universal_decoder.json: readers solved alone
"""

import json
from pathlib import Path
from typing import Any

from pltz.benchmarks.plots import (
    archive,
    decoder,
    distances,
    field,
    first_token,
    joint,
    kv,
    nightly,
    scale,
    slots,
    speed,
    stack,
    thaw,
    training,
)

RESULTS = Path(__file__).parents[1] / "results"


def lines(name: str) -> list[dict[str, Any]]:
    """Return the results in a kept file, one per line; none where there is no such file."""
    path = RESULTS / f"{name}.json"
    return [json.loads(line) for line in path.read_text("utf8").splitlines()] if path.is_file() else []


def main() -> None:
    """Draw every figure whose results are kept."""
    figures = {name: speed.panels(lines(name)[0], ".svg") for name in ("speed", "speed_avx2", "speed_cuda")}
    figures["thaw"] = thaw.ways(lines("thaw"), ".svg")
    figures["thaw_turns"] = thaw.turns(lines("thaw_turns"), ".svg")
    figures["sharing"] = archive.sharing(lines("archive")[0]["sharing"], ".svg")
    if growing := lines("archive_growing"):
        figures["archive_growing"] = archive.growth(growing[0]["growing"], ".svg")
    titles = {"field": "unseen test sessions", "field_sample": "sample sessions"}
    figures["field"] = field.rates({title: lines(name)[0] for name, title in titles.items() if lines(name)}, ".svg")
    figures["nightly"] = nightly.growth(lines("nightly")[0]["nights"], ".svg")
    figures["distances"] = distances.heat(lines("distances")[0], ".svg")
    figures["kv"] = kv.curves([one for one in lines("kv") if one["target"] in ("smollm2", "key-bias")], ".svg")
    figures["kv_device"] = kv.tiers(lines("kv_device"), ".svg")
    figures["universal_decoder"] = decoder.curve(lines("universal_decoder"), ".svg")
    figures["first_token"] = first_token.lengths(lines("first_token"), ".svg")
    figures["training_mini"] = training.loss(lines("training_mini")[0], ".svg")
    if sizes := lines("scale"):
        figures["scale"] = scale.costs(sizes, ".svg")
    if deployments := lines("stack"):
        figures["stack"] = stack.both(deployments[0], ".svg")
    figures["slots"] = slots.sizes(lines("slots")[0], ".svg")
    if experiments := lines("joint"):
        figures["joint"] = joint.losses(experiments[0], ".svg")
    for name, data in figures.items():
        (RESULTS / f"{name}.svg").write_bytes(data)
        print(RESULTS / f"{name}.svg")


if __name__ == "__main__":
    main()
