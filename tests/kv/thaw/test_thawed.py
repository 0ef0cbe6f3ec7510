"""The promise of a thaw: the target's own KV of the session's ids, or a refusal, but never another model's KV."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from pltz.kv.thaw.thawed import KV_NOISE, Thawed, check_target, kv_difference, thaw
from pltz.models.target.target import Target
from pltz.plt_codec.errors import TargetMismatch
from tests.models.target.test_target import full_generate, some_ids


@pytest.fixture(scope="module")
def one(llama: Path) -> Target:
    return Target.load(llama)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, save_model: Any, llama_config: dict[str, Any]) -> Target:
    config = transformers.LlamaConfig(**llama_config | {"rms_norm_eps": 0.1})
    return Target.load(save_model(tmp_path_factory.mktemp("other"), config))


def continued(target: Target, thawed: Thawed, n: int) -> list[int]:
    return target.generate(thawed.cache, thawed.token_ids, n, logits=thawed.logits)


@pytest.mark.parametrize("count", [1, 17, 200])
def test_a_thawed_cache_continues_as_the_model_does_from_the_full_ids(target: Target, count: int) -> None:
    ids = some_ids(target, count)
    thawed = thaw(ids, target, frozen_for=target.fingerprint)
    assert thawed.token_ids.tolist() == ids and thawed.cache.get_seq_length() == count
    assert continued(target, thawed, 50) == full_generate(target, ids, 50)


def test_in_bfloat16_the_noise_is_that_of_bfloat16(target: Target) -> None:
    half = Target.load(target.folder, dtype="bfloat16")
    ids = some_ids(half, 60)
    thawed = thaw(ids, half)
    assert 0.0 < kv_difference(half.prefill(ids, chunk=1)[0], thawed.cache) <= KV_NOISE["bfloat16"]
    assert continued(half, thawed, 30) == full_generate(half, ids, 30)


def test_a_session_of_another_target_is_refused_unless_any_target(one: Target, other: Target) -> None:
    ids = some_ids(one, 20)
    assert one.fingerprint != other.fingerprint
    with pytest.raises(TargetMismatch) as caught:
        thaw(ids, other, frozen_for=one.fingerprint)
    for part in (one.fingerprint.hex(), other.fingerprint.hex(), "--any-target"):
        assert part in str(caught.value)
    assert caught.value.exit_code == 4
    forced = thaw(ids, other, frozen_for=one.fingerprint, any_target=True)
    assert kv_difference(forced.cache, other.prefill(ids)[0]) == 0.0  # the new weights' own work


def test_a_target_can_be_checked_by_its_fingerprint_alone() -> None:
    check_target(None, b"a" * 16)
    check_target(b"a" * 16, b"a" * 16)
    check_target(b"a" * 16, b"b" * 16, any_target=True)
    for wrong in (b"b" * 16, b"", b"a" * 15):
        with pytest.raises(TargetMismatch):
            check_target(wrong, b"a" * 16)


def test_a_nan_in_a_kv_is_no_small_difference(one: Target) -> None:
    sound, _ = one.prefill([40])
    broken, _ = one.prefill([40])
    layer: Any = broken.layers[1]
    layer.values = layer.values * float("nan")
    assert kv_difference(sound, broken) == kv_difference(broken, sound) == float("inf")
