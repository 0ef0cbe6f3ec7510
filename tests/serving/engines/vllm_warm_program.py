"""Serve with warm KV in a real vLLM; test_vllm_warm.py runs it in vLLM's environment, once for each server.

python -m tests.serving.engines.vllm_warm_program MODEL_FOLDER FOLDER first|second|damaged|multi|offload RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM

from tests.serving.engines.vllm_program import page, sampling

TOKENS = 80


def ask(llm: LLM, ids: list[int], salt: str | None = None) -> tuple[list[int], list[float], int]:
    """Return the answer, its log-probabilities, and how many tokens of the prompt were not computed."""
    from vllm.inputs import TokensPrompt

    request = TokensPrompt(prompt_token_ids=ids)
    if salt is not None:
        request["cache_salt"] = salt
    asked = sampling(TOKENS)
    asked.logprobs = 0
    [reply] = llm.generate([request], asked, use_tqdm=False)
    [answer] = reply.outputs
    chances = [one.logprob for step in answer.logprobs for one in step.values()]
    return list(answer.token_ids), chances, int(reply.num_cached_tokens or 0)


def counters(llm: LLM) -> dict[str, float]:
    """Return vLLM's own counters of an external cache."""
    return {m.name: m.value for m in llm.get_metrics() if m.name.startswith(("vllm:external_prefix", "vllm:pltz_warm"))}


def together(llm: LLM, ids: list[int]) -> list[list[int]]:
    """Return the answers to prompts of which some are warm, asked all at once, and those asked one by one."""
    from vllm.inputs import TokensPrompt

    prompts = [TokensPrompt(prompt_token_ids=some) for some in (ids, ids[::-1][:100], ids[:300], ids[40:90])]
    answers = []
    for batch in (prompts, *([prompt] for prompt in prompts)):
        answers += [list(reply.outputs[0].token_ids) for reply in llm.generate(batch, sampling(8), use_tqdm=False)]
        assert llm.llm_engine.reset_prefix_cache()
    return answers


def abort(llm: LLM, ids: list[int]) -> bool:
    """Abort requests while their blocks are loaded, and return whether all blocks are free afterwards."""
    from vllm.inputs import TokensPrompt

    for number in range(20):
        llm.llm_engine.add_request(f"gone {number}", TokensPrompt(prompt_token_ids=ids), sampling(8))
        time.sleep(0.0005 * number)
        llm.llm_engine.abort_request([f"gone {number}"])
    ask(llm, ids[:40])  # the engine runs on
    return bool(llm.llm_engine.reset_prefix_cache())


def main(model: str, folder: str, what: str, result: str) -> None:
    extra: dict[str, Any] = {
        "journal": f"{folder}/journal", "target": "ab" * 16, "warm": f"{folder}/warm", "warm_bytes": 1 << 30,
    }  # fmt: skip
    own = {
        "kv_connector": "PltzConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_module_path": "pltz.serving.engines.vllm_connector", "kv_connector_extra_config": extra,
    }  # fmt: skip
    if what == "multi":
        example = {
            "kv_connector": "ExampleConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": f"{folder}/example"},
        }  # fmt: skip
        own = {
            "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [own, example]},
        }  # fmt: skip
    if what == "offload":
        offloader = {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "cpu_bytes_to_use": 64 << 20, "spec_name": "PlainOffloadingSpec", "offload_prompt_only": False,
                "spec_module_path": "tests.serving.engines.vllm_cpu_offload",
            },
        }  # fmt: skip
        own = {
            "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [offloader, own]},
        }  # fmt: skip
    llm = LLM(
        model=model, dtype="float32", enforce_eager=True, max_model_len=2048, max_num_seqs=4, block_size=32,
        kv_cache_memory_bytes=64 << 20, enable_prefix_caching=True, max_num_batched_tokens=256,
        kv_transfer_config=own, disable_log_stats=False,
    )  # fmt: skip
    ids = llm.get_tokenizer().encode(page(), add_special_tokens=False)
    out: dict[str, Any] = {"prompt": len(ids), "asked": []}
    for salt in (None, None, "other"):
        start = time.perf_counter()
        answer, chances, cached = ask(llm, ids, salt)
        ms = 1e3 * (time.perf_counter() - start)
        out["asked"].append({"answer": answer, "chances": chances, "cached": cached, "ms": ms})
        time.sleep(0.5)  # the writer
        assert llm.llm_engine.reset_prefix_cache()
    continued, _, cached = ask(llm, [*ids, *out["asked"][0]["answer"]])  # the session's next turn
    out["continued"], out["continued cached"] = continued, cached
    out["together"] = together(llm, ids)
    out["free after aborts"] = abort(llm, ids)
    out["counters"] = counters(llm)
    if what == "second":
        assert llm.llm_engine.reset_prefix_cache(reset_connector=True)
        out["after a reset"] = ask(llm, ids)[2]
    Path(result).write_text(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
