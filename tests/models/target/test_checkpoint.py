"""Test the promises of a target folder: it is named by its files, and loads without running anybody's code."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch
import transformers
from huggingface_hub.utils._paths import filter_repo_objects

import pltz
from pltz.models.target.checkpoint import differing, fingerprint_of
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ModelError, UsageError
from tests.failing import raising
from tests.files import flip

Edit = Callable[[Path], None]


def edit_json(name: str, change: Callable[[dict[str, Any]], Any]) -> Edit:
    def edit(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value, indent=1))

    return edit


def flip_weight_bit(folder: Path) -> None:
    path = folder / "model.safetensors"
    flip(path, -100)


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
        assert prints == {fingerprint_of(llama)} and len(prints.pop()) == 16

    @pytest.mark.parametrize("edit", [
        shard,
        edit_json("config.json", lambda c: c.update(_name_or_path="elsewhere", transformers_version="4.0.0")),
        edit_json("config.json", lambda c: c.update(torch_dtype=c.pop("dtype"), use_cache=False)),
        edit_json("tokenizer.json", lambda t: t.update(truncation={"max_length": 5}, padding={"pad_id": 0})),
        edit_json(
            "tokenizer.json", lambda t: t["model"].update(merges=[" ".join(p) for p in t["model"]["merges"]])
        ),
        lambda folder: (folder / "README.md").write_text("about"),
    ], ids=["shards", "where and by what it was written", "dtype key", "padding", "merges in old spelling", "readme"])
    def test_does_not_depend_on(self, copy: Path, edit: Edit) -> None:
        before = fingerprint_of(copy)
        edit(copy)
        assert fingerprint_of(copy) == before

    @pytest.mark.parametrize(("edit", "part"), [
        (flip_weight_bit, "config or weights"),
        (edit_json("config.json", lambda c: c.update(rms_norm_eps=1e-5)), "config or weights"),
        (edit_json("tokenizer.json", lambda t: t["model"]["merges"].pop()), "tokenizer"),
        (lambda folder: (folder / "chat_template.jinja").write_text("{{ messages }}"), "chat template"),
        (edit_json("tokenizer_config.json", lambda c: c.update(chat_template="{{ messages }}")), "chat template"),
        (edit_json("tokenizer_config.json", lambda c: c.update(bos_token="<|lane|>")), "special tokens"),
    ], ids=["one bit of one weight", "config", "tokenizer", "template", "template in the settings", "special token"])
    def test_depends_on(self, copy: Path, edit: Edit, part: str) -> None:
        before = fingerprint_of(copy)
        edit(copy)
        assert fingerprint_of(copy) != before and differing(before, fingerprint_of(copy)) == [part]

    def test_a_template_is_the_same_wherever_it_stands(self, copy: Path) -> None:
        edit_json("tokenizer_config.json", lambda c: c.update(chat_template="{{ messages }}"))(copy)
        before = fingerprint_of(copy)
        edit_json("tokenizer_config.json", lambda c: c.pop("chat_template"))(copy)
        (copy / "chat_template.jinja").write_text("{{ messages }}")
        assert fingerprint_of(copy) == before
        (copy / "chat_template.jinja").unlink()
        named = [{"name": "default", "template": "{{ messages }}"}]
        edit_json("tokenizer_config.json", lambda c: c.update(chat_template=named))(copy)
        assert fingerprint_of(copy) == before

    def test_is_refused_when_the_files_changed_since_they_were_loaded(self, copy: Path) -> None:
        target = Target.load(copy)
        edit_json("config.json", lambda c: c.update(rms_norm_eps=1e-5))(copy)
        with pytest.raises(ModelError, match="changed since"):
            _ = target.fingerprint


class TestRefusals:
    @pytest.mark.parametrize(("edit", "message"), [
        (pickle_weights, r"pickled weights \(pytorch_model.bin\).*save_pretrained"),
        (lambda folder: (folder / "model.safetensors").unlink(), "found no weights"),
        (lambda folder: (folder / "config.json").unlink(), "expected config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot read"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), "cannot read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "expected a JSON object"),
        (edit_json("config.json", lambda c: c.update(model_type="unheard-of")), "cannot load"),
        (edit_json("config.json", lambda c: c.update(transformers_weights="x.bin")), "transformers_weights"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter"),
        (truncate_weights, "cannot load"), (drop_tensor, "found none for model.layers.1.mlp.up_proj.weight"),
        (index_of({"a": "pytorch_model.bin"}), "expected safetensors file names"),
        (index_of({"a": "../model.safetensors"}), "expected safetensors file names"),
        (index_of({"a": "gone.safetensors"}), "expected gone.safetensors"), (index_of({}), "weight_map"),
        (index_of({"a": 1}), "weight_map"), (lambda folder: (folder / "tokenizer.json").write_text("[]"), "tokenizer"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "expected tokenizer.json .*save_pretrained"),
    ])
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

    def test_code_in_the_folder_never_runs(self, copy: Path) -> None:
        marker = copy / "ran"
        (copy / "code.py").write_text(f"open({str(marker)!r}, 'w')\nfrom transformers import LlamaConfig as Own\n")
        edit_json("config.json", lambda c: c.update(model_type="own", auto_map={"AutoConfig": "code.Own"}))(copy)
        with pytest.raises(ModelError, match="give the loaded model"):
            Target.load(copy)
        assert not marker.exists()

    def test_names_that_lead_nowhere(self, tmp_path: Path, llama: Path) -> None:
        for name in ("./no/such/folder", "a/b/c", "", tmp_path / "gone", llama / "config.json"):
            with pytest.raises(ModelError, match="expected a model folder"):
                Target.load(name)

    def test_a_hub_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub, "snapshot_download", raising(ConnectionError("no route\nlong story")))
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
        files = ["pytorch_model.bin", "modeling.py", "onnx/model.safetensors", "model.safetensors", "tokenizer.json"]
        filters = {key: asked[key] for key in ("allow_patterns", "ignore_patterns")}
        assert list(filter_repo_objects(files, **filters)) == ["model.safetensors", "tokenizer.json"]

    @pytest.mark.parametrize(
        "wrong", [{"device": "abacus"}, {"device": "cuda:99"}, {"dtype": "int8"}, {"dtype": "x"}, {"dtype": "nn"}]
    )
    def test_a_device_or_dtype_that_is_none(self, llama: Path, wrong: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="expected a"):
            Target.load(llama, **wrong)


def loaded(folder: Path, **options: Any) -> Any:
    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, **options)


def test_it_thaws_as_the_folder_does(llama: Path) -> None:
    data = pltz.compress([[33, 40, 51, 62]], tokenizer=llama / "tokenizer.json")
    by_folder, tokenizer = pltz.thaw(data, llama), Target.load(llama).tokenizer
    for words in ({}, {"tokenizer": tokenizer}):
        by_model = pltz.thaw(data, loaded(llama), **words)
        assert by_model.token_ids.tolist() == by_folder.token_ids.tolist() == [33, 40, 51, 62]
        assert torch.equal(by_model.logits, by_folder.logits)
    assert Target.of(loaded(llama)).fingerprint == Target.load(llama).fingerprint == pltz.fingerprint_of(llama)
    assert Target.of(loaded(llama, dtype=torch.bfloat16)).model.dtype == torch.bfloat16


def test_other_weights_are_refused(llama: Path) -> None:
    model = loaded(llama)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    with pytest.raises(pltz.ModelError, match="is not the one in"):
        Target.of(model)


def test_a_weight_of_its_own_is_refused(llama: Path) -> None:
    model = loaded(llama)
    model.register_parameter("extra", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(pltz.ModelError, match="have no weight extra"):
        Target.of(model)


def test_another_tokenizer_is_refused(llama: Path) -> None:
    other = Target.load(llama).tokenizer
    other.add_tokens(["<another>"])
    with pytest.raises(pltz.ModelError, match="another vocabulary"):
        Target.of(loaded(llama), other)


def test_what_is_no_loaded_model_is_refused(llama: Path) -> None:
    data = pltz.compress(["hello"])
    with pytest.raises(pltz.UsageError, match="model of transformers"):
        pltz.thaw(data, 3.5)
    with pytest.raises(pltz.UsageError, match="leave it out"):
        pltz.thaw(data, llama, tokenizer=Target.load(llama).tokenizer)
    model = loaded(llama)
    model.name_or_path = model.config._name_or_path = ""
    with pytest.raises(pltz.UsageError, match="where it was loaded from"):
        Target.of(model)
