"""Rows of the papers' table that need a GPU, another target or hours: recorded, each with date, command and source.

The figures are those of files in `benchmarks/results/` and of documents of the repository; a test compares them.
"""

from __future__ import annotations

from pltz.experiments.papers.row import (
    FAILS,
    HOLDS,
    JOINT,
    LEARNED,
    MEMORY,
    OPEN,
    PART,
    TIERS,
    TOWERS,
    PaperRow,
    Recorded,
)

THAW = Recorded(
    "2026-11-29", "python -m pltz.experiments thaw --shape llama-8b --device cuda", "benchmarks/results/thaw.json"
)
DEVICE = Recorded(
    "2026-11-30", "python -m pltz.benchmarks.kv.measure_kv --calibration FILE", "benchmarks/results/kv_device.json"
)
FORMS = Recorded(
    "2026-11-23",
    "python -m pltz.experiments kv --target smollm2 --calibration FILE --data chat_test.jsonl.zst --context 1536 "
    "--new 512 --sessions 32 --device cuda",
    "benchmarks/results/kv.json",
)
COMPOSE = Recorded(
    "2026-11-24",
    "python -m pltz.experiments.compose.measure_compose smollm2 chat_test.jsonl.zst --rows 4",
    "benchmarks/results/compose.json",
)
COMMUNITIES = Recorded(
    "2026-11-23",
    "python -m pltz.experiments communities > all.jsonl && "
    "python -m pltz.experiments neighbours --data all.jsonl --measure near,zstd",
    "benchmarks/results/neighbours_communities.json",
)
LIBRARY = Recorded(
    "2026-11-22",
    "python -m pltz.experiments neighbours --data chat_test.jsonl.zst --earlier chat_train.jsonl.zst "
    "--sessions 64 --measure near,zstd",
    "benchmarks/results/neighbours_mini_train.json",
)
SLOTS = Recorded(
    "2026-11-25", "python -m pltz.experiments.slots.measure_slots URL SLOTS mini-llama", "benchmarks/results/slots.json"
)
FUSED = Recorded(
    "2026-11-28",
    "python -m pltz.experiments joint --calibration FILE --rows 16 --context 256 --new 48 --room 5 --cosine 0.99 "
    "--cosine 0.95 --cosine 0.9 --cosine 0.8 --cosine 0.7 --share 0.0005 --share 0.005",
    "benchmarks/results/joint.json",
)
POOL = Recorded("2026-11-29", "python -m pltz.benchmarks.kv.measure_pool", "benchmarks/results/pool.json")
SHADOW = Recorded("2026-11-24", "python -m pltz.experiments.three_tiers.measure_shadow", "experiments/LOG.md")
EVICTION = Recorded(
    "2026-11-24",
    "python -m pltz.experiments.three_tiers.measure_eviction --data chat_validation.jsonl.zst --chats 100 --seeds 5",
    "experiments/LOG.md",
)

DECODER = Recorded(
    "2026-11-28", "python -m pltz.experiments.learned_kv decoder MODEL ROWS --device cuda",
    "benchmarks/results/universal_decoder.json",
)
BUDGETS = Recorded(
    "2026-11-28", "python -m pltz.experiments.learned_kv budgets MODEL ROWS --device cuda",
    "benchmarks/results/learned_budgets.json",
)

RECORDED = [
    PaperRow(
        TOWERS, "8.1", "a tower moves as a whole; outside the premise reuse is not exact", "exact under the premise",
        "SmolLM2-135M, three documents behind another prompt: KL 0.0453 without repair, 0.0083 with 15 %",
        HOLDS, "the theorem covers towers that move whole; documents that move alone need repair", COMPOSE,
    ),
    PaperRow(
        TOWERS, "8.1", "slot files as base plus delta, for 1, 10, 100 bots", "storage as in theorem 14",
        "37.3, 14.4 and 6.3 % of the plain files, spliced byte for byte; a real llama-server goes on alike",
        HOLDS, "", SLOTS,
    ),
    PaperRow(
        TOWERS, "10.5", "decode and prefill of 4,000 tokens", "5 to 15 ms and 100 to 500 ms",
        "H200, shape of 8B: decode 34.8 ms, 12.8 in the fast layout; prefill 114.9 ms; thaw 133.4 ms, "
        "1.16 of a prefill",
        PART, "the fast layout holds; the default one is slower, for 8 % fewer bytes", THAW,
    ),
    PaperRow(
        TOWERS, "Table 3, 5", "a session of 4,000 tokens", "1.5 KB, 850,000 times below 70B's KV",
        "1,327 bytes; 8B's KV is 524 MB, so 395,000 times (fast layout 1,444 bytes)",
        PART, "the bytes hold; the ratio depends on the target's KV, and 8B has 0.41 of 70B's", THAW,
    ),
    PaperRow(
        TOWERS, "10.10", "tiers: hot, warm, cold", "1 us, 0.1 to 1 ms, 100 to 500 ms",
        "H200, 8B, 4,000 tokens: 5.8 ms on the device; 15.2 ms raw in host memory; predictive 24.3 from disk; "
        "133 cold",
        FAILS, "the paper counts an access to memory; a whole session is copied or decoded and joined: 10 to 100 times",
        DEVICE,
    ),
    PaperRow(
        TOWERS, "7, Remark 24", "Q at 5 times and D at 30 times compose to 150", "0.11 bits per element, unharmed",
        "SmolLM2-135M: q4 4.58 bits at KL 0.0024; prediction across layers with coding 0.73 bits at KL 0.0023, "
        "22 times",
        FAILS, "prediction replaces the quantiser, and the two do not multiply", FORMS,
    ),
    PaperRow(
        TOWERS, "Theorem 32, all 50", "bytes per community", "50",
        "96 (160 alone, zstd 575); 100 of 500 bots 58",
        FAILS, "a quarter of each prompt is its own, and that costs its full code length; bots that add three "
        "sentences come near", COMMUNITIES,
    ),
    PaperRow(
        TOWERS, "Conjecture 35", "a universal decoder of tokens to KV", "exists, at a tenth of the compute",
        "mini-llama: KL 0.213 at 5 % of the prefill's compute, 0.192 at 31, 0.030 at 56; a linear map of the token "
        "alone 0.246, the KV of another session 0.470; SmolLM2-135M: 0.196 at 3 %, 0.172 at 28, 0.150 at 55; its "
        "values are off by 8 to 10 times the error of 4 bits",
        FAILS, "none comes near the tolerance; on SmolLM2 seven times the time takes narrow from 0.325 to 0.196, "
        "and half of the layers do not reach 0.1; q4 loses 0.002", DECODER,
    ),
    PaperRow(
        TOWERS, "12.2, Proposition 36", "a library of centroids that ships with the model", "a few bytes per segment",
        "64 sessions of each source from the training split at hand, 17 MB: test sessions take 0.998 of their bytes",
        FAILS, "the bundle was trained on them: it knows already what a centroid would tell it", LIBRARY,
    ),
    PaperRow(
        LEARNED, "Table 1, trained", "trained encoders, decoders, budgets at 2, 3, 4 times", "0.9, 1.1, 1.9 points",
        "SmolLM2-135M: trained by squared error KL 0.313, 0.463, 0.449 (untrained and even 0.215, 0.322, 0.345); by "
        "KL 0.022, 0.033, 0.049, with even budgets 0.027, 0.044, 0.068",
        PART, "the paper's loss keeps the wrong directions; training by KL helps seven to ten times, learnt budgets by "
        "a fifth to a third, and q4 loses 0.0022 at 3.5 times", BUDGETS,
    ),
    PaperRow(
        LEARNED, "5.1, abstract, trained", "layers with the larger budget", "late ones (abstract), early ones (5.1)",
        "SmolLM2-135M at 2 times: by squared error the last ten of 30 layers 244 of 384 dimensions, the first ten 159; "
        "by KL 195 and 197",
        PART, "late ones by the paper's loss; by what the target says next, neither", BUDGETS,
    ),
    PaperRow(
        LEARNED, "Table 1", "drop of accuracy of Llama-3.1-8B at 2, 3, 4 times", "0.9, 1.1, 1.9 points",
        "accuracy was not measured; the rows above give KL", OPEN, "the model does not fit these machines",
    ),
    PaperRow(
        MEMORY, "Q4 attention", "attention over packed Q4", "faster than FP16 by bandwidth",
        "H200, one layer: 1.05 of bf16's speed with 1 session of 4,096 tokens, 1.90 with 32 of 16,384",
        PART, "one short session gains nothing: its pass is over before memory counts", POOL,
    ),
    PaperRow(
        TIERS, "warming", "as fast as a copy of memory", "100 % of the bus",
        "H200, 138 and 554 MB: 0.84 to 0.96 of a plain copy's 53 to 55 GB/s, spilling 0.78 to 0.95", PART,
        "moves in a row are nearer, 0.92 to 0.98: the rest is the host's part", POOL,
    ),
    PaperRow(
        TIERS, "shadow", "cost of writing the cold tier each minute", "below 2 %", "0.8 to 1.4 % of the time",
        HOLDS, "",
        SHADOW,
    ),
    PaperRow(
        TIERS, "eviction", "by attention, better than LRU", "better",
        "blocks missing with room for a tenth: LRU 12.40 %, attention alone 54.86, idle time then attention 12.71; "
        "of the attention they miss 12.60, 25.84 and 8.82 %", PART,
        "attention does not tell who comes back; it helps only where single blocks of a chat may be missing", EVICTION,
    ),
    PaperRow(
        JOINT, "6.4", "sessions and tokens per second in the same memory", "+40 %",
        "cosine 0.8: 8 sessions for 5, 1.38 times the tokens per second, KL 0.457; 0.95: 5 and 1.02 times. Plain pages "
        "as the pool attends to them: 2.12 times with 5",
        PART, "more sessions fit, at a loss that no text survives; q4 pages hold 3.8 times as many", FUSED,
    ),
    PaperRow(
        JOINT, "7", "beside quantisation, at equal bytes", "better than its rivals",
        "5.8 bits per number at KL 0.894; q4 6.3 at 0.0021, predictive 3.7 at 0.0001", FAILS,
        "blocks hardly point alike once their common mean is out: there is little to share", FUSED,
    ),
]  # fmt: skip
