"""Serve, freeze, go cold and thaw in a real vLLM with the connector. test_vllm.py runs it in vLLM's environment.

python -m tests.serving.engines.vllm_program MODEL_FOLDER LORA_FOLDER JOURNAL ARCHIVE RESULT.json
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.inputs import EmbedsPrompt, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.v1.request import Request, RequestStatus

import pltz
from pltz.archive.format.record import RUN
from pltz.datasets import sample_sessions
from pltz.models.target.checkpoint import fingerprint_of
from pltz.plt_codec.errors import PltzError
from pltz.serving.engines.vllm_request import VllmEngine
from pltz.serving.eviction.worker import drain
from tests.archive.peek import peek
from tests.archive.towers import SessionArchive

BEFORE, AFTER = 48, 48  # tokens of the answer before the freeze, and after the thaw
TURNS, ASKED, SAID = 8, 40, 32  # of a session that grows: turns, and tokens of each question and answer


def page() -> str:
    """Return a prompt of a few hundred tokens, from the sessions that ship with pltz."""
    texts = [message["content"] for session in sample_sessions()[:8] for message in session.value["messages"]]
    return f"<|user|>{' '.join(texts)[:2500]}<|assistant|>"


def sampling(tokens: int, **session: str) -> Any:
    extra = {"kv_transfer_params": {"pltz": session}} if session else None
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)


def serve(
    llm: LLM, ids: list[int], tokens: int, *, salt: str | None = None, lora: Any = None, **session: str
) -> tuple[list[int], int]:
    """Return the answer to a prompt, and how many tokens of the prompt were hot."""
    request = TokensPrompt(prompt_token_ids=ids)
    if salt is not None:
        request["cache_salt"] = salt
    [reply] = llm.generate([request], sampling(tokens, **session), lora_request=lora, use_tqdm=False)
    return list(reply.outputs[0].token_ids), int(reply.num_cached_tokens or 0)


def grown(llm: LLM, ids: list[int], journal: str, place: str) -> dict[str, Any]:
    """Let a session grow, each turn archived before the next one, so that puts join turns; thaw it from a new handle.

    Returns how many records its turns lie in, and how it goes on.
    """
    archive = pltz.Archive.open(place)
    history: list[int] = []
    for turn in range(TURNS):
        history += ids[ASKED * turn : ASKED * (turn + 1)]
        said, _ = serve(llm, history, SAID, session="grown", tenant="acme")
        history += said
        time.sleep(0.2)  # the journal's flush
        drain(journal, archive)
    question = ids[ASKED * TURNS : ASKED * (TURNS + 1)]
    wanted, _ = serve(llm, [*history, *question], AFTER)
    assert llm.llm_engine.reset_prefix_cache()
    again = pltz.Archive.open(place)
    behind = peek(again, "grown", "acme")
    found = again.get("grown", tenant="acme")
    asked = VllmEngine(found.target).thaw(found.ids, frozen_for=found.target)
    llm.generate([TokensPrompt(**asked)], sampling(1), use_tqdm=False)
    goes_on, hot = serve(llm, [*found.ids.tolist(), *question], AFTER)
    return {
        "records": len(behind), "runs": sum(bool(item.record.mode & RUN) for item in behind),
        "ids": found.ids.tolist() == history, "tokens": len(history), "hot": hot, "same": goes_on == wanted,
    }


def refusal(call: Any) -> str:
    try:
        call()
    except PltzError as exc:
        return type(exc).__name__
    return ""


def finished(images: list[Any], **session: str) -> Any:
    """A request as the scheduler hands it over."""
    made = Request("cmpl-1", [5, 6, 7], sampling(4, **session), None, mm_features=images)
    made.status = RequestStatus.FINISHED_STOPPED
    made.append_output_token_ids([8])
    return made


def main(model: str, lora: str, journal: str, place: str, result: str) -> None:
    settings = {"journal": journal}
    llm = LLM(
        model=model, dtype="float32", enforce_eager=True, max_model_len=2048, max_num_seqs=4, block_size=32,
        kv_cache_memory_bytes=64 << 20, enable_prefix_caching=True, enable_lora=True, max_lora_rank=8,
        enable_prompt_embeds=True,
        kv_transfer_config={
            "kv_connector": "PltzConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "pltz.serving.engines.vllm_connector", "kv_connector_extra_config": settings,
        },
    )
    ids = llm.get_tokenizer().encode(page(), add_special_tokens=False)
    style, target = LoRARequest("style", 1, lora), fingerprint_of(model)
    out: dict[str, Any] = {}

    whole, _ = serve(llm, ids, BEFORE + AFTER, salt="uninterrupted")
    half, _ = serve(llm, ids, BEFORE, salt="of acme", session="chat", tenant="acme")
    serve(llm, ids, BEFORE, salt="of beta", session="chat", tenant="beta")
    styled, _ = serve(llm, ids, 8, lora=style, session="styled", tenant="acme")
    serve(llm, ids, 4)  # names no session: nobody asks for it
    import torch

    embeds = EmbedsPrompt(prompt_embeds=torch.zeros(40, 256))
    llm.generate([embeds], sampling(4, session="embeds", tenant="acme"), use_tqdm=False)

    _, hot = serve(llm, [*ids, *half], 1, salt="of acme")
    assert llm.llm_engine.reset_prefix_cache()  # all goes cold
    time.sleep(0.5)  # the journal's flush
    cold = SessionArchive.open(place, create=True)
    drained = drain(journal, cold.cold)
    found = cold.get_ids("chat", "acme", salt="of acme")
    out["frozen"] = {"tokens": len(found.ids), "bytes": drained.frozen, "entries": drained.entries, "raw": drained.raw}
    out["ids"] = found.ids.tolist() == [*ids, *half]
    out["target"] = found.target == target
    out["styled"] = cold.get_ids("styled", "acme").ids.tolist() == [*ids, *styled]
    out["names"] = sorted((v.tenant, v.name) for v in cold.archive.ls())
    out["other salt"] = refusal(lambda: cold.get_ids("chat", "acme", salt="of beta"))
    out["no salt"] = refusal(lambda: cold.get_ids("chat", "acme"))
    out["adapter left out"] = refusal(
        lambda: VllmEngine(target).thaw(found.ids, frozen_for=cold.get_ids("styled", "acme").target)
    )
    asked = VllmEngine(target).thaw(found.ids, salt="of acme", frozen_for=found.target)
    start = time.perf_counter()
    [reply] = llm.generate([TokensPrompt(**asked)], sampling(1), use_tqdm=False)  # the thaw
    out["thaw_ms"] = 1e3 * (time.perf_counter() - start)
    out["cold"] = int(reply.num_cached_tokens or 0)
    again, out["thawed"] = serve(llm, found.ids.tolist(), AFTER, salt="of acme")
    _, out["beta's"] = serve(llm, found.ids.tolist(), 1, salt="of beta")
    out |= {"hot": hot, "same": again == whole[BEFORE:], "same before": half == whole[:BEFORE], "prompt": len(ids)}
    image = VllmEngine().evicted(finished([object()], session="seen"))
    unnamed = VllmEngine(unnamed=True).evicted(finished([]))
    out["multimodal"] = image is not None and image.multimodal and image.session == "seen"
    named = VllmEngine().evicted(finished([]))
    out["grown"] = grown(llm, ids, journal, place)
    out["unnamed"] = named is None and unnamed is not None and list(unnamed.token_ids) == [5, 6, 7, 8]
    Path(result).write_text(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
