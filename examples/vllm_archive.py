"""Freeze a session of vLLM when its request finishes, and bring it back by its ids.

See docs/vllm.md.

    python examples/vllm_archive.py MODEL_FOLDER        # in an environment with vLLM and pltz

Prints one JSON line: sizes, times, and whether the session goes on as if nothing had been.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

import pltz

SALT = "a secret of acme's"


def main(model: str, folder: Path) -> None:
    llm = LLM(
        model=model,
        dtype="float32",  # so that two runs can be compared to the last token
        enforce_eager=True,
        max_model_len=2048,
        kv_cache_memory_bytes=64 << 20,
        kv_transfer_config={
            "kv_connector": "PltzConnector",
            "kv_role": "kv_both",
            "kv_connector_module_path": "pltz.serving.engines.vllm_connector",
            "kv_connector_extra_config": {"journal": str(folder / "journal")},
        },
    )

    def ask(ids: list[int], tokens: int, **session: str) -> tuple[list[int], int, float]:
        """Return the answer, the number of hot prompt tokens, and milliseconds."""
        extra = {"kv_transfer_params": {"pltz": session}} if session else None
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)
        request = TokensPrompt(prompt_token_ids=ids, cache_salt=SALT)
        start = time.perf_counter()
        [reply] = llm.generate([request], sampling, use_tqdm=False)
        spent = 1e3 * (time.perf_counter() - start)
        return list(reply.outputs[0].token_ids), int(reply.num_cached_tokens or 0), spent

    texts = [
        message["content"] for session in pltz.sample_sessions() for message in session.value["messages"]
    ]
    ids = llm.get_tokenizer().encode("\n".join(texts), add_special_tokens=False)[:1000]
    whole, _, _ = ask(ids, 64)  # what it would have said, for comparison
    ask(ids, 32, session="chat-7", tenant="acme")  # frozen at its finish
    llm.llm_engine.reset_prefix_cache()  # all goes cold

    time.sleep(0.5)  # the journal is durable within 0.05 s
    cold = pltz.Archive.open(folder / "archive", create=True)
    frozen = pltz.drain(folder / "journal", cold)  # in service: the hook's worker, or `pltz hook drain`
    start = time.perf_counter()
    found = cold.get("chat-7", tenant="acme", salt=SALT)
    decode = 1e3 * (time.perf_counter() - start)
    engine = pltz.VllmEngine(pltz.fingerprint_of(model))
    request = engine.thaw(found.ids, salt=SALT, frozen_for=found.target)
    _, _, prefill = ask(request["prompt_token_ids"], 1)  # the thaw
    again, hot, _ = ask(request["prompt_token_ids"], 32)
    report = {
        "tokens": len(found.ids),
        "frozen_bytes": frozen.frozen,
        "decode_ms": round(decode, 1),
        "thaw_request_ms": round(prefill, 1),
        "hot_for_next": hot,
        "goes_on_the_same": again == whole[32:],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as journal_and_archive:
        main(sys.argv[1], Path(journal_and_archive))
