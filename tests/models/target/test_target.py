"""Test the promises of a loaded target: it prefills, renders and goes on as it serves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers

from pltz.kv.thaw.thawed import KV_NOISE, kv_difference
from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session import transcript
from pltz.models.session.session import Session
from pltz.models.target.cache import cache_bytes
from pltz.models.target.checkpoint import TARGETS
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ContentError, ModelError, OpaqueContentError, UsageError

EMBEDDED = TARGETS / "mini-llama"
VOCAB = 384  # of the small llama in conftest.py
POSITIONS = 256


@pytest.fixture(scope="module")
def random_target(llama: Path) -> Target:
    return Target.load(llama)


@pytest.fixture(scope="module", params=["random weights", "embedded"])
def target(request: pytest.FixtureRequest, llama: Path) -> Target:
    """The target a user would meet first, in float32, and one with random weights."""
    if request.param == "embedded" and not EMBEDDED.is_dir():
        pytest.skip("this checkout has no embedded target")
    return Target.load(EMBEDDED if request.param == "embedded" else llama, dtype="float32")


def some_ids(target: Target, count: int) -> list[int]:
    """Ids of ordinary text, without specials: the same for every run."""
    return [int(i) for i in np.random.default_rng(count).integers(32, target.vocab_size, count)]


def full_generate(target: Target, ids: list[int], n: int) -> list[int]:
    """The oracle: transformers' own greedy generation from the full ids."""
    out = target.model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False, max_new_tokens=n, pad_token_id=0,
    )
    return [int(i) for i in out[0, len(ids) :]]


class TestPrefill:
    def test_covers_all_ids_and_gives_the_logits_of_the_last(self, target: Target) -> None:
        ids = some_ids(target, 100)
        cache, logits = target.prefill(ids)
        with torch.inference_mode():
            expected = target.model(torch.tensor([ids])).logits[0, -1]
        assert isinstance(cache, transformers.DynamicCache) and cache.get_seq_length() == 100
        assert logits.shape == (target.vocab_size,)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)

    @pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
    def test_in_chunks_gives_the_same_kv_within_float_noise(self, target: Target, chunk: int) -> None:
        ids = some_ids(target, 150)
        whole, logits = target.prefill(ids)
        cut, cut_logits = target.prefill(ids, chunk=chunk)
        assert kv_difference(whole, cut) <= KV_NOISE["float32"] and int(logits.argmax()) == int(cut_logits.argmax())

    def test_extends_a_cache_of_the_first_ids(self, target: Target) -> None:
        ids = some_ids(target, 120)
        whole, _ = target.prefill(ids)
        prefix, _ = target.prefill(ids[:50])
        extended, _ = target.prefill(ids, cache=prefix)
        assert extended is prefix and kv_difference(whole, extended) <= KV_NOISE["float32"]

    def test_of_a_cache_that_covers_all_ids_gives_the_logits_again(self, target: Target) -> None:
        ids = some_ids(target, 30)
        cache, logits = target.prefill(ids)
        _, again = target.prefill(ids, cache=cache)
        assert cache.get_seq_length() == 30
        torch.testing.assert_close(again, logits, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize(("ids", "message"), [
        ([], "at least one"), ([[1, 2]], "flat"), ([1.0], "integers"), ([True], "integers"), (["1"], "integers"),
        ([1 << 80], "integers"), ([[1], [2, 3]], "sequence of token ids"), ([-1], "found -1"),
        ([VOCAB], f"found {VOCAB}"), ([40] * (POSITIONS + 1), f"at most {POSITIONS} tokens"),
    ])
    def test_refuses_ids_it_cannot_take(self, random_target: Target, ids: list[Any], message: str) -> None:
        with pytest.raises(ContentError, match=message):
            random_target.prefill(ids)

    def test_refuses_a_cache_or_a_chunk_that_does_not_fit(self, random_target: Target) -> None:
        cache, _ = random_target.prefill([40, 41, 42])
        with pytest.raises(UsageError, match="expected a cache of at most 2 tokens"):
            random_target.prefill([40, 41], cache=cache)
        with pytest.raises(UsageError, match="at least 1"):
            random_target.prefill([40, 41], chunk=0)

    def test_wraps_what_the_model_raises(self, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = Target.load(llama)
        for error, message in (
            (torch.OutOfMemoryError("big"), "smaller chunks"),
            (KeyError("odd"), "failed on 3 tokens"),
        ):

            def fail(*args: object, error: Exception = error, **kwargs: object) -> None:
                raise error

            monkeypatch.setattr(target.model, "forward", fail)
            with pytest.raises(ModelError, match=message):
                target.prefill([40, 41, 42])

    def test_refuses_a_model_that_keeps_no_cache(self, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = Target.load(llama)
        forward = target.model.forward
        monkeypatch.setattr(
            target.model,
            "forward",
            lambda input_ids, use_cache, cache=None, past_key_values=None, **kw: forward(input_ids, **kw),
        )
        with pytest.raises(ModelError, match="keeps no DynamicCache"):
            target.prefill([40, 41, 42])


class TestGenerate:
    @pytest.mark.parametrize("count", [1, 20, 130])
    def test_equals_generation_from_the_full_ids(self, target: Target, count: int) -> None:
        ids = some_ids(target, count)
        cache, logits = target.prefill(ids)
        assert target.generate(cache, ids, 40, logits=logits) == full_generate(target, ids, 40)

    def test_without_logits_runs_the_last_id_again(self, target: Target) -> None:
        ids = some_ids(target, 60)
        cache, _ = target.prefill(ids)
        assert target.generate(cache, ids, 20) == full_generate(target, ids, 20)

    def test_from_a_cache_of_the_first_ids_runs_the_rest(self, target: Target) -> None:
        ids = some_ids(target, 60)
        cache, logits = target.prefill(ids[:40])
        assert target.generate(cache, ids, 20, logits=logits) == full_generate(target, ids, 20)

    def test_stops_after_the_first_id_that_ends(self, llama: Path) -> None:
        target = Target.load(llama)
        assert target.eos_ids == {2}
        ids = some_ids(target, 20)
        free = target.generate(*first(target.prefill(ids), ids), 30)
        target.eos_ids = frozenset({free[4]})
        assert target.generate(*first(target.prefill(ids), ids), 30) == free[: free.index(free[4]) + 1]

    def test_stops_at_the_last_position(self, llama: Path) -> None:
        target = Target.load(llama)
        target.eos_ids = frozenset()
        ids = some_ids(target, POSITIONS - 3)
        cache, logits = target.prefill(ids)
        assert (
            len(target.generate(cache, ids, 100, logits=logits)) == 4
        )  # the last needs no position of its own
        assert cache.get_seq_length() == POSITIONS

def first(prefilled: tuple[transformers.DynamicCache, torch.Tensor], ids: list[int]) -> tuple[Any, list[int]]:
    return prefilled[0], ids


OTHER_CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "gpt2": lambda shape: transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=2,
    ),
    "mistral, window 16": lambda shape: transformers.MistralConfig(
        **{**shape, "sliding_window": 16, "model_type": "mistral"}
    ),
    "qwen2": lambda shape: transformers.Qwen2Config(**{**shape, "model_type": "qwen2"}),
}


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_other_architectures_prefill_and_continue_alike(
    name: str, save_model: Callable[..., Path], llama_config: dict[str, Any], tmp_path: Path
) -> None:
    target = Target.load(save_model(tmp_path, OTHER_CONFIGS[name](llama_config)))
    ids = some_ids(target, 40)
    assert target.max_positions == POSITIONS
    cache, logits = target.prefill(ids)
    cut, _ = target.prefill(ids, chunk=9)
    assert kv_difference(cache, cut) <= KV_NOISE["float32"]
    assert target.generate(cache, ids, 20, logits=logits) == full_generate(target, ids, 20)


class TestKvBytes:
    def test_counts_what_the_cache_holds(self, target: Target) -> None:
        cache, _ = target.prefill(some_ids(target, 33))
        assert cache_bytes(cache) == 33 * target.token_bytes


class TestRender:
    CHAT: ClassVar[dict[str, Any]] = {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": " hello\n\n"},
            {"role": "tool", "content": "{}", "name": "é"},
        ]
    }

    def test_of_an_embedded_target_is_the_bundles_serialisation(self, target: Target) -> None:
        ids = target.render(self.CHAT)
        parts = [[1], target.tokenize("be kind"), [2], target.tokenize(" hello\n\n")]
        parts += [[4], target.tokenize("{}"), [5], target.tokenize('[{"name":"é"}]')]
        assert ids == [i for part in parts for i in part]
        assert target.render(self.CHAT, add_generation_prompt=True) == [*ids, 3]
        assert target.render(self.CHAT["messages"]) == ids
        assert target.decode(ids).startswith("<|system|>be kind<|user|> hello\n\n<|tool|>{}<|message|>[")

    @pytest.mark.parametrize("message", [
        {"role": "assistant", "content": "<|"}, {"content": "a", "role": "user", "self": {"items": [1.5, None, True]}},
        {"role": "user", "content": [{"type": "text", "text": "<'&> "}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": []}, {"role": "user", "content": {"a": "b"}}, {"role": "user", "content": ["a"]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": 1, "content": "a"}, {"content": "x"},
    ])
    def test_of_an_embedded_target_is_what_a_frozen_chat_thaws_to(
        self, random_target: Target, message: dict[str, Any], tiny_tokenizer_json: Callable[..., bytes]
    ) -> None:
        bundle = BundleTokenizer(tiny_tokenizer_json(VOCAB))
        chat = {"messages": [{"role": "system", "content": "é\n"}, message], "id": 7}
        frozen = transcript.to_tokens(Session("chat", chat), bundle)
        assert random_target.render(chat) == transcript.conversation_ids(frozen).tolist()
        assert Bridge(random_target.tokenizer_json, bundle).identity

    def test_takes_sharegpt(self, target: Target) -> None:
        turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
        assert target.render({"conversations": turns}) == target.render(messages)

    @pytest.mark.parametrize("chat", [
        None, "hello", {}, {"messages": "hello"}, {"messages": ["hello"]}, {"conversations": [{"role": "user"}]},
        {"conversations": 3}, {"messages": [], "tools": "none"}, [{"role": "user", "content": "\ud800"}],
    ])
    def test_refuses_what_is_no_chat(self, random_target: Target, chat: Any) -> None:
        with pytest.raises(ContentError):
            random_target.render(chat)

    def test_refuses_a_part_that_is_not_text(self, random_target: Target) -> None:
        content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
        with pytest.raises(OpaqueContentError, match="message 1 holds a part of type 'image_url'"):
            random_target.render([{"role": "user", "content": content}])

    def test_wraps_what_a_template_raises(self, llama: Path) -> None:
        target = Target.load(llama)
        target.tokenizer.chat_template = "{{ raise_exception('only users here') }}"
        with pytest.raises(ContentError, match="only users here"):
            target.render(self.CHAT)
        target.tokenizer.chat_template = None
        with pytest.raises(ModelError, match="no chat template"):
            target.render(self.CHAT)


def test_the_embedded_target_is_found_by_name_and_is_small() -> None:
    if not EMBEDDED.is_dir():
        pytest.skip("this checkout has no embedded target")
    target = Target.load("mini-llama")
    assert target.folder == EMBEDDED and sum(path.stat().st_size for path in EMBEDDED.iterdir()) <= 32 << 20
    assert set(range(5)) <= target.eos_ids
