"""What a target promises: it is named by its files, loads without running anybody's code, and prefills as it serves."""

import doctest
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from huggingface_hub.utils._paths import filter_repo_objects
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pltz.archive.thaw import KV_NOISE, kv_difference
from pltz.models import kv_size, transcript
from pltz.models.bridge import Bridge
from pltz.models.checkpoint import TARGETS, fingerprint_of
from pltz.models.kv_size import KNOWN_SHAPES, cache_bytes, kv_bytes_of
from pltz.models.session import Session
from pltz.models.target import Target
from pltz.models.tokenizer import BundleTokenizer
from pltz.models.training import train_target
from pltz.plt_codec.errors import ContentError, ModelError, OpaqueContentError, UsageError

EMBEDDED = TARGETS / "mini-llama"
NAMES = ["lane", "system", "user", "assistant", "tool", "message", "meta", "sharegpt", "list", "text"]
NAMES += ["developer", "function", "r12", "r13", "r14", "r15", *[f"x{i}" for i in range(16)]]
VOCAB = 384
POSITIONS = 256
Edit = Callable[[Path], None]


def bundle_tokenizer() -> dict[str, Any]:
    """A tiny tokenizer of the bundle's kind: specials in the vocabulary, none of them an added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[f"<|{name}|>" for name in NAMES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    value: dict[str, Any] = json.loads(tokenizer.to_str())
    assert len(value["model"]["vocab"]) == VOCAB
    return {**value, "added_tokens": []}


def save_model(folder: Path, config: transformers.PretrainedConfig) -> Path:
    """A model with random weights, large enough that its greedy choices are not ties, and a tokenizer."""
    torch.manual_seed(7)
    auto: Any = transformers.AutoModelForCausalLM  # its hints are not whole
    model = auto.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    source = folder / "bundle_tokenizer.json"
    source.write_text(json.dumps(bundle_tokenizer()))
    train_target.write_tokenizer(source, folder, POSITIONS)
    source.unlink()
    return folder


def llama_config() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        bos_token_id=None,
        eos_token_id=2,
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"), llama_config())


@pytest.fixture(scope="module")
def random_target(llama: Path) -> Target:
    return Target.load(llama)


@pytest.fixture(scope="module", params=["random weights", "embedded"])
def target(request: pytest.FixtureRequest, llama: Path) -> Target:
    """The target a user would meet first, in float32, and one with random weights."""
    if request.param == "embedded" and not EMBEDDED.is_dir():
        pytest.skip("this checkout has no embedded target")
    return Target.load(EMBEDDED if request.param == "embedded" else llama, dtype="float32")


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def some_ids(target: Target, count: int) -> list[int]:
    """Ids of ordinary text, without specials: the same for every run."""
    return [int(i) for i in np.random.default_rng(count).integers(32, target.vocab_size, count)]


def full_generate(target: Target, ids: list[int], n: int) -> list[int]:
    """The oracle: transformers' own greedy generation from the full ids."""
    out = target.model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids)),
        do_sample=False,
        max_new_tokens=n,
        pad_token_id=0,
    )
    return [int(i) for i in out[0, len(ids) :]]


def edit_json(name: str, change: Callable[[dict[str, Any]], Any]) -> Edit:
    def edit(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value, indent=1))

    return edit


def flip_weight_bit(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def shard(folder: Path) -> None:
    """Cut model.safetensors into shards of a few tensors each."""
    Target.load(folder).model.save_pretrained(folder / "cut", max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    for path in (folder / "cut").glob("model*"):
        path.rename(folder / path.name)
    assert len(list(folder.glob("model-*.safetensors"))) > 2


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never opened")


def drop_tensor(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def truncate_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def index_of(weight_map: object) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(b"never opened")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return edit


class TestFingerprint:
    def test_is_16_bytes_and_the_same_for_every_dtype_and_for_the_files_alone(self, llama: Path) -> None:
        prints = {Target.load(llama, dtype=dtype).fingerprint for dtype in (None, "float32", "bfloat16")}
        assert prints == {fingerprint_of(llama)}
        assert len(prints.pop()) == 16

    @pytest.mark.parametrize(
        "edit",
        [
            shard,
            edit_json(
                "config.json", lambda c: c.update(_name_or_path="elsewhere", transformers_version="4.0.0")
            ),
            edit_json("config.json", lambda c: c.update(torch_dtype=c.pop("dtype"), use_cache=False)),
            edit_json(
                "tokenizer.json", lambda t: t.update(truncation={"max_length": 5}, padding={"pad_id": 0})
            ),
            edit_json(
                "tokenizer.json",
                lambda t: t["model"].update(merges=[" ".join(p) for p in t["model"]["merges"]]),
            ),
            lambda folder: (folder / "README.md").write_text("about"),
        ],
        ids=[
            "shards",
            "where and by what it was written",
            "dtype key",
            "padding",
            "merges in old spelling",
            "readme",
        ],
    )
    def test_does_not_depend_on(self, copy: Path, edit: Edit) -> None:
        before = fingerprint_of(copy)
        edit(copy)
        assert fingerprint_of(copy) == before

    @pytest.mark.parametrize(
        "edit",
        [
            flip_weight_bit,
            edit_json("config.json", lambda c: c.update(rms_norm_eps=1e-5)),
            edit_json("tokenizer.json", lambda t: t["model"]["merges"].pop()),
        ],
        ids=["one bit of one weight", "config", "tokenizer"],
    )
    def test_depends_on(self, copy: Path, edit: Edit) -> None:
        before = fingerprint_of(copy)
        edit(copy)
        assert fingerprint_of(copy) != before

    def test_is_refused_when_the_files_changed_since_they_were_loaded(self, copy: Path) -> None:
        target = Target.load(copy)
        edit_json("config.json", lambda c: c.update(rms_norm_eps=1e-5))(copy)
        with pytest.raises(ModelError, match="changed since"):
            _ = target.fingerprint


class TestRefusals:
    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (pickle_weights, r"pickled weights \(pytorch_model.bin\).*save_pretrained"),
            (lambda folder: (folder / "model.safetensors").unlink(), "found no weights"),
            (lambda folder: (folder / "config.json").unlink(), "expected config.json"),
            (lambda folder: (folder / "config.json").write_text("{"), "cannot read"),
            (lambda folder: (folder / "config.json").write_text("[" * 100_000), "cannot read"),
            (lambda folder: (folder / "config.json").write_text("[]"), "expected a JSON object"),
            (edit_json("config.json", lambda c: c.update(model_type="unheard-of")), "cannot load"),
            (
                edit_json("config.json", lambda c: c.update(transformers_weights="x.bin")),
                "transformers_weights",
            ),
            (lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter"),
            (truncate_weights, "cannot load"),
            (drop_tensor, "found none for model.layers.1.mlp.up_proj.weight"),
            (index_of({"a": "pytorch_model.bin"}), "expected safetensors file names"),
            (index_of({"a": "../model.safetensors"}), "expected safetensors file names"),
            (index_of({"a": "gone.safetensors"}), "expected gone.safetensors"),
            (index_of({}), "weight_map"),
            (index_of({"a": 1}), "weight_map"),
            (lambda folder: (folder / "tokenizer.json").write_text("[]"), "tokenizer"),
        ],
    )
    def test_a_folder_that_is_not_a_sound_model(self, copy: Path, edit: Edit, message: str) -> None:
        edit(copy)
        with pytest.raises(ModelError, match=message):
            Target.load(copy)

    @pytest.mark.parametrize("edit", [truncate_weights, pickle_weights, index_of({})])
    def test_no_fingerprint_without_sound_weights(self, copy: Path, edit: Edit) -> None:
        edit(copy)
        with pytest.raises(ModelError):
            fingerprint_of(copy)

    def test_the_same_tensor_in_two_shards(self, copy: Path) -> None:
        shutil.copy(copy / "model.safetensors", copy / "a.safetensors")
        shutil.copy(copy / "model.safetensors", copy / "b.safetensors")
        index_of({"x": "a.safetensors", "y": "b.safetensors"})(copy)
        with pytest.raises(ModelError, match="stands twice"):
            fingerprint_of(copy)

    def test_a_pickle_beside_the_safetensors_is_never_opened(self, copy: Path) -> None:
        class Trap:
            def __reduce__(self) -> tuple[Any, ...]:
                return (Path.touch, (copy / "sprung",))

        for name in ("pytorch_model.bin", "training_args.bin"):
            (copy / name).write_bytes(pickle.dumps(Trap()))
        Target.load(copy)
        assert not (copy / "sprung").exists()

    def test_code_in_the_folder_runs_only_when_asked_for(self, copy: Path) -> None:
        marker = copy / "ran"
        (copy / "code.py").write_text(
            f"open({str(marker)!r}, 'w')\nfrom transformers import LlamaConfig as Own\n"
        )
        edit_json("config.json", lambda c: c.update(model_type="own", auto_map={"AutoConfig": "code.Own"}))(
            copy
        )
        with pytest.raises(ModelError, match="trust_remote_code=True"):
            Target.load(copy)
        assert not marker.exists()

    def test_names_that_lead_nowhere(self, tmp_path: Path, llama: Path) -> None:
        for name in ("./no/such/folder", "a/b/c", "", tmp_path / "gone", llama / "config.json"):
            with pytest.raises(ModelError, match="expected a model folder"):
                Target.load(name)

    def test_a_hub_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise ConnectionError("no route\nlong story")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
        with pytest.raises(ModelError, match=r"cannot fetch 'some/model' .*ConnectionError: no route"):
            Target.load("some/model")

    def test_a_hub_is_asked_for_safetensors_only(self, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def answer(name: str, **kwargs: Any) -> str:
            asked.update(kwargs, name=name)
            return str(llama)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
        assert Target.load("some/model", revision="v1").fingerprint == fingerprint_of(llama)
        assert (asked["name"], asked["revision"]) == ("some/model", "v1")
        files = [
            "pytorch_model.bin",
            "modeling.py",
            "onnx/model.safetensors",
            "model.safetensors",
            "tokenizer.json",
        ]
        filters = {key: asked[key] for key in ("allow_patterns", "ignore_patterns")}
        kept = filter_repo_objects(files, **filters)
        assert list(kept) == ["model.safetensors", "tokenizer.json"]

    @pytest.mark.parametrize(
        "wrong",
        [{"device": "abacus"}, {"device": "cuda:99"}, {"dtype": "int8"}, {"dtype": "x"}, {"dtype": "nn"}],
    )
    def test_a_device_or_dtype_that_is_none(self, llama: Path, wrong: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="expected a"):
            Target.load(llama, **wrong)


class TestPrefill:
    def test_covers_all_ids_and_gives_the_logits_of_the_last(self, target: Target) -> None:
        ids = some_ids(target, 100)
        cache, logits = target.prefill(ids)
        with torch.inference_mode():
            expected = target.model(torch.tensor([ids])).logits[0, -1]
        assert isinstance(cache, transformers.DynamicCache)
        assert cache.get_seq_length() == 100
        assert logits.shape == (target.vocab_size,)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)

    def test_takes_arrays_as_well_as_lists(self, random_target: Target) -> None:
        ids = some_ids(random_target, 10)
        _, expected = random_target.prefill(ids)
        for array in (np.array(ids, np.uint16), np.array(ids, np.int32), tuple(ids)):
            assert torch.equal(random_target.prefill(array)[1], expected)

    @pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
    def test_in_chunks_gives_the_same_kv_within_float_noise(self, target: Target, chunk: int) -> None:
        ids = some_ids(target, 150)
        whole, logits = target.prefill(ids)
        cut, cut_logits = target.prefill(ids, chunk=chunk)
        assert kv_difference(whole, cut) <= KV_NOISE["float32"]
        assert int(logits.argmax()) == int(cut_logits.argmax())

    def test_extends_a_cache_of_the_first_ids(self, target: Target) -> None:
        ids = some_ids(target, 120)
        whole, _ = target.prefill(ids)
        prefix, _ = target.prefill(ids[:50])
        extended, _ = target.prefill(ids, cache=prefix)
        assert extended is prefix
        assert kv_difference(whole, extended) <= KV_NOISE["float32"]

    def test_of_a_cache_that_covers_all_ids_gives_the_logits_again(self, target: Target) -> None:
        ids = some_ids(target, 30)
        cache, logits = target.prefill(ids)
        _, again = target.prefill(ids, cache=cache)
        assert cache.get_seq_length() == 30
        torch.testing.assert_close(again, logits, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            ([], "at least one"),
            ([[1, 2]], "flat"),
            ([1.0], "integers"),
            ([True], "integers"),
            (["1"], "integers"),
            ([1 << 80], "integers"),
            ([[1], [2, 3]], "sequence of token ids"),
            ([-1], "found -1"),
            ([VOCAB], f"found {VOCAB}"),
            ([40] * (POSITIONS + 1), f"at most {POSITIONS} tokens"),
        ],
    )
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
            lambda input_ids, past_key_values, use_cache, **kw: forward(input_ids, **kw),
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

    def test_of_nothing_is_nothing(self, random_target: Target) -> None:
        cache, logits = random_target.prefill([40])
        assert random_target.generate(cache, [40], 0, logits=logits) == []


def first(prefilled: tuple[transformers.DynamicCache, torch.Tensor], ids: list[int]) -> tuple[Any, list[int]]:
    return prefilled[0], ids


OTHER_CONFIGS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=POSITIONS,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=2,
    ),
    "mistral, window 16": lambda: transformers.MistralConfig(
        **{**llama_config().to_dict(), "sliding_window": 16, "model_type": "mistral"}
    ),
    "qwen2": lambda: transformers.Qwen2Config(**{**llama_config().to_dict(), "model_type": "qwen2"}),
}


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_other_architectures_prefill_continue_and_count_alike(name: str, tmp_path: Path) -> None:
    target = Target.load(save_model(tmp_path, OTHER_CONFIGS[name]()))
    ids = some_ids(target, 40)
    assert target.max_positions == POSITIONS
    cache, logits = target.prefill(ids)
    cut, _ = target.prefill(ids, chunk=9)
    assert kv_difference(cache, cut) <= KV_NOISE["float32"]
    assert target.kv_bytes(40) == cache_bytes(cache)
    assert kv_bytes_of(json.loads((tmp_path / "config.json").read_text()), 40) == cache_bytes(cache)
    assert target.generate(cache, ids, 20, logits=logits) == full_generate(target, ids, 20)


class TestKvBytes:
    def test_counts_what_the_cache_holds(self, target: Target) -> None:
        cache, _ = target.prefill(some_ids(target, 33))
        assert target.kv_bytes(33) == cache_bytes(cache) == 33 * target.kv_bytes(1)

    @pytest.mark.parametrize(("name", "size"), [("Llama-3.1-8B", 131_072), ("Llama-3.1-70B", 327_680)])
    def test_of_well_known_models(self, name: str, size: int) -> None:
        assert kv_bytes_of(KNOWN_SHAPES[name]) == size
        assert kv_bytes_of(KNOWN_SHAPES[name], 1000, element_bytes=4) == 2000 * size

    @pytest.mark.parametrize(
        ("config", "size"),
        [
            ({"n_layer": 12, "n_head": 12, "n_embd": 768, "dtype": "float32"}, 100 * 12 * 2 * 768 * 4),
            (KNOWN_SHAPES["Qwen3-8B"] | {"sliding_window": 9}, 36 * 2 * 8 * 128 * 2 * 8),
            (
                KNOWN_SHAPES["Qwen3-8B"] | {"sliding_window": 9, "use_sliding_window": False},
                36 * 2 * 8 * 128 * 2 * 100,
            ),
            ({"text_config": KNOWN_SHAPES["Qwen3-8B"]}, 36 * 2 * 8 * 128 * 2 * 100),
            ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 100 * 61 * 576 * 2),
            (
                KNOWN_SHAPES["Qwen3-8B"] | {"layer_types": ["linear_attention", "full_attention"] * 18},
                18 * 2 * 8 * 128 * 2 * 100,
            ),
        ],
        ids=["gpt2", "window", "window off", "nested", "latent", "hybrid"],
    )
    def test_of_100_tokens(self, config: dict[str, Any], size: int) -> None:
        assert kv_bytes_of(config, 100) == size

    @pytest.mark.parametrize(
        "config", [{}, {"num_hidden_layers": 3}, {"num_hidden_layers": "x", "head_dim": 3}]
    )
    def test_refuses_a_config_without_heads(self, config: dict[str, Any]) -> None:
        with pytest.raises(ModelError, match="layers and heads"):
            kv_bytes_of(config)


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

    @pytest.mark.parametrize(
        "message",
        [
            {"role": "assistant", "content": "<|"},
            {"content": "a", "role": "user", "self": {"items": [1.5, None, True]}},
            {"role": "user", "content": [{"type": "text", "text": "<'&> "}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": []},
            {"role": "user", "content": {"a": "b"}},
            {"role": "user", "content": ["a"]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]},
            {"role": 1, "content": "a"},
            {"content": "x"},
        ],
    )
    def test_of_an_embedded_target_is_what_a_frozen_chat_thaws_to(
        self, random_target: Target, message: dict[str, Any]
    ) -> None:
        bundle = BundleTokenizer(json.dumps(bundle_tokenizer()).encode())
        chat = {"messages": [{"role": "system", "content": "é\n"}, message], "id": 7}
        frozen = transcript.to_tokens(Session("chat", chat), bundle)
        assert random_target.render(chat) == transcript.conversation_ids(frozen).tolist()
        assert Bridge(random_target.tokenizer_json, bundle).identity

    def test_takes_sharegpt(self, target: Target) -> None:
        turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
        assert target.render({"conversations": turns}) == target.render(messages)

    @pytest.mark.parametrize(
        "chat",
        [
            None,
            "hello",
            {},
            {"messages": "hello"},
            {"messages": ["hello"]},
            {"conversations": [{"role": "user"}]},
            {"conversations": 3},
            {"messages": [], "tools": "none"},
            [{"role": "user", "content": "\ud800"}],
        ],
    )
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


def test_the_example_in_the_module_head_holds() -> None:
    assert doctest.testmod(kv_size) == (0, 1)


def test_the_embedded_target_is_found_by_name_and_is_small() -> None:
    if not EMBEDDED.is_dir():
        pytest.skip("this checkout has no embedded target")
    target = Target.load("mini-llama")
    assert target.folder == EMBEDDED
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir()) <= 32 << 20
    assert set(range(5)) <= target.eos_ids


def test_training_makes_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second of training on a repeating stream, from the files the preparation writes to a target that thaws."""
    data = tmp_path / "data"
    data.mkdir()
    session = np.array([2, 40, 41, 42, 3, 43, 44, 45], "<u2")
    for name, repeats in (("train", 400), ("val", 30)):
        np.tile(session, repeats).tofile(data / f"{name}.bin")
    np.save(data / "train.offsets.npy", np.arange(0, 401 * 8, 8))
    (tmp_path / "bundle.json").write_text(json.dumps(bundle_tokenizer()))
    shape = "--hidden 32 --intermediate 64 --layers 1 --positions 256 --length 32 --long-length 64 --batch-tokens 256"
    command = f"{data} --out {tmp_path / 'out'} --tokenizer {tmp_path / 'bundle.json'} --seconds 1.5 --log-every 0.5"
    train_target.main(
        [*command.split(), *shape.split(), "--vocab", str(VOCAB), "--device", "cpu", "--rate", "1e-2"]
    )
    assert "tokens/s" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["val_loss"] < 3.0  # 5.95 at the start
    assert str(tmp_path) not in (tmp_path / "out" / "training.json").read_text()
    target = Target.load(tmp_path / "out")
    assert target.model.dtype == torch.bfloat16
    assert target.eos_ids == frozenset(range(12))
    assert target.max_positions == 256
    cache, _ = target.prefill(session)
    assert cache_bytes(cache) == target.kv_bytes(8)


@pytest.mark.parametrize("wrong", ["--vocab 40000", "--length 9000", "--seconds 0", "--seconds nan", ""])
def test_training_refuses_a_wrong_call(wrong: str, tmp_path: Path) -> None:
    np.zeros(100, "<u2").tofile(tmp_path / "train.bin")
    np.save(tmp_path / "train.offsets.npy", np.array([0, 100]))
    with pytest.raises(SystemExit):
        train_target.main([str(tmp_path), "--out", str(tmp_path / "out"), *wrong.split()])
