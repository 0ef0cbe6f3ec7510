"""The compiled engine against torch: same bytes, tokens and errors, for every kernel that runs here, at the edges too.

The oracle is the second reader, written from NUMERICS.md alone. (CUDA has tests of its own.)
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

from pltz.benchmarks.random_weights import random_weights
from pltz.plt_codec.engines.native.coder import NativeCoder, available, kernels
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.types import Encoded, FrameItem
from pltz.plt_codec.weights import Weights
from tests.plt_codec.cuts import cut
from tests.second_reader.model import Model, tokens_of

pytestmark = pytest.mark.skipif(not available(), reason="the compiled engine was not built (no C compiler at install)")

HEADS = {"d": 64, "heads": 4, "kv_heads": 2, "head_dim": 64, "hidden": 64, "layers": 1, "block": 96, "memory": 40}
HEATS = {"mild heats": [0, 1, 1023, 65535], "wild heats": [1024, 65535, 65536, (1 << 31) - 1]}
SHAPES = {
    "small": {},
    "odd": {"vocab": 384, "d": 50, "heads": 6, "kv_heads": 2, "head_dim": 10, "hidden": 75, "block": 100, "memory": 37},
    "wide": {
        "d": 384, "heads": 6, "kv_heads": 3, "head_dim": 64, "hidden": 416, "layers": 1, "block": 192, "memory": 96,
    },
    "full heads": {"d": 64, "heads": 4, "kv_heads": 2, "head_dim": 64, "layers": 1, "block": 128, "memory": 64},
    "half heads": {"d": 96, "heads": 3, "kv_heads": 1, "head_dim": 32, "layers": 1, "block": 96, "memory": 64},
    "one key head": {"heads": 20, "kv_heads": 1, "head_dim": 6, "d": 34, "block": 64, "memory": 64},
    "silent": {},
    "alike": {"d": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "layers": 1, "block": 128, "memory": 64},
    "opposed": {"d": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "layers": 1, "block": 128, "memory": 64},
    "extreme": {"extreme": True},
    "extreme, wide": {"extreme": True, "d": 512, "head_dim": 64, "hidden": 1000, "layers": 1, "block": 128},
    "gated": {"gated": True, "block": 32, "memory": 10},
    "gated, odd": {
        "gated": True, "vocab": 384, "d": 50, "heads": 6, "kv_heads": 2, "head_dim": 10, "hidden": 75, "block": 100,
        "memory": 37,
    },
    "gated, extreme": {"gated": True, "extreme": True, "block": 32, "memory": 10},
    "gated, wide": {
        "gated": True, "d": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "hidden": 416, "layers": 1, "block": 128,
    },
    "gated, widest": {
        "gated": True, "extreme": True, "d": 1024, "head_dim": 64, "hidden": 600, "layers": 1, "block": 128,
    },
    "wide vocabulary": {
        "vocab": 16384, "d": 32, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 64, "block": 64, "memory": 16,
    },
    **dict.fromkeys(("all logits equal", "one class wins", "opposite keys", *HEATS), HEADS),
}
LAYOUTS = [(16, 4), (None, None), (1, 40), (4, 16), (16, 9), (3, 7), (64, 2)]
LENGTHS = (0, 1, 2, 3, 15, 64, 65, 100, 259, 333)


@cache
def model(name: str) -> Weights:
    """A random model of one of SHAPES.

    "silent" has all multipliers 0. Where queries are keys, or keys with the other sign ("alike", "opposed"), a
    position's score with itself is near 24^2 * 64 = 36864 or its opposite, which do not fit 16 bits. With "opposite
    keys" token 1 is minus token 0 and keys are queries: scores lie 2 * 192^2 > 2^16 apart.
    """
    weights = random_weights(5, **SHAPES[name])  # type: ignore[arg-type]
    t = {key: tensor.copy() for key, tensor in weights.tensors.items()}
    if name in ("alike", "opposed"):
        for head in (0, 64):
            t["layer.0.qkv.w"][head : head + 64] = t["layer.0.qkv.w"][128:192] * (1 if name == "alike" else -1)
            t["layer.0.qkv.m"][head : head + 64] = t["layer.0.qkv.m"][128:192]
    elif name == "opposite keys":
        t["embed.w"][1], t["embed.m"][1] = -t["embed.w"][0], t["embed.m"][0]
        t["layer.0.qkv.w"][4 * 64 : 6 * 64] = t["layer.0.qkv.w"][[*range(64), *range(128, 192)]]
        t["layer.0.qkv.m"][:] = t["layer.0.qkv.m"][0]
        t["table.phase"][:] = 1
    elif name == "one class wins":  # a gap of 2^24: all others get a count of 1 or 2
        t["class.b"][:] = -(1 << 24) + 1
        t["class.b"][1] = (1 << 24) - 1
    elif name in HEATS:
        t["layer.0.heat"][:] = HEATS[name]
    still = {"silent": (".m", ".heat"), "all logits equal": ("class.m", "class.b", "member.m", "member.b")}
    return Weights(weights.shape, {k: v * 0 if k.endswith(still.get(name, ())) else v for k, v in t.items()})


def ids_of(name: str, lengths: tuple[int, ...] | None = None) -> list[np.ndarray]:
    """Random ids for a model; where keys shall be opposite, of tokens 0 and 1 alone."""
    return sequences(2 if name == "opposite keys" else model(name).shape.vocab, lengths or LENGTHS)


@cache
def reference(name: str) -> TokenCoder:
    """The torch engine on it."""
    return TokenCoder(TorchEngine(model(name), threads=1))


def sequences(vocab: int, lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    """Random ids of some lengths."""
    rng = np.random.default_rng(9)
    return [rng.integers(0, vocab, n) for n in lengths]


@cache
def frames(name: str, lanes: int | None, steps: int | None) -> list[Encoded]:
    """What the reference encodes."""
    return reference(name).encode(ids_of(name), layouts=cut(lanes, steps))


def items(encoded: list[Encoded], lengths: tuple[int, ...] = LENGTHS) -> list[FrameItem]:
    """Frames as the decoder takes them."""
    return [FrameItem(e.data, n, e.layout) for e, n in zip(encoded, lengths, strict=True)]


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize("name", SHAPES)
def test_same_bytes_and_tokens_as_the_reference(name: str, kernel: str) -> None:
    coder, tokens = NativeCoder(model(name), threads=1, kernel=kernel), ids_of(name)
    for lanes, steps in LAYOUTS[:1] if name != "small" else LAYOUTS:
        want = frames(name, lanes, steps)
        got = coder.encode(tokens, layouts=cut(lanes, steps))
        assert [e.data for e in got] == [e.data for e in want]
        assert [(e.blocks, e.layout) for e in got] == [(e.blocks, e.layout) for e in want]
        assert [e.ideal_bits for e in got] == pytest.approx([e.ideal_bits for e in want])
        back = coder.decode(items(want))
        assert all(b.dtype == np.int64 and np.array_equal(b, t) for b, t in zip(back, tokens, strict=True))


@cache
def oracle(name: str) -> Model:
    weights = model(name)
    return Model(weights.shape.to_dict(), dict(weights.tensors))


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_coded_the_oracle_decodes(name: str) -> None:
    [tokens] = ids_of(name, (110,))
    [coded] = NativeCoder(model(name), threads=1).encode([tokens], layouts=Layout(5, 19))
    assert tokens_of(oracle(name), coded.data, 110, (5, 19)) == tokens.tolist()


def test_opposite_keys_lie_further_apart_than_16_bits() -> None:
    """The case is what it claims to be."""
    second = oracle("opposite keys")
    memory = second.blank()
    second.run([0, 1], [0, 0], memory)
    key, opposite = memory[0][0, :, 0].astype(np.int64)  # and the query of the first is its key
    assert key @ (key - opposite) >= 1 << 16


@cache
def long_model() -> Weights:
    return random_weights(3, d=16, layers=1, heads=2, kv_heads=1, head_dim=64, hidden=16, block=16384, memory=64)


@cache
def long_frames() -> list[bytes]:
    """A block of 16384 tokens and one more, and a block of one token, as torch codes them."""
    torch = TokenCoder(TorchEngine(long_model(), threads=1))
    return [e.data for e in torch.encode(sequences(512, (16385, 1)), layouts=Layout(64, 256))]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [kernel for kernel in kernels() if kernel != "plain"])  # it takes a minute
def test_the_longest_block_and_the_shortest(kernel: str) -> None:
    tokens, native = sequences(512, (16385, 1)), NativeCoder(long_model(), threads=2, kernel=kernel)
    got = native.encode(tokens, layouts=Layout(64, 256))
    assert [e.data for e in got] == long_frames()
    assert [b.tolist() for b in native.decode(items(got, (16385, 1)))] == [one.tolist() for one in tokens]


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("name", ["odd", "alike", "gated, wide"])  # heads of 64 have an attention of their own
def test_threads_and_company_change_nothing(name: str, threads: int, kernel: str) -> None:
    if kernel == "plain" and name != "odd":
        pytest.skip("the plain kernel has one attention, and is slow")
    coder = NativeCoder(model(name), threads=threads, kernel=kernel)
    tokens, want = sequences(coder.shape.vocab), frames(name, None, None)
    for _ in range(3):
        assert [e.data for e in coder.encode(tokens[::-1])] == [e.data for e in want[::-1]]
    mixed = [FrameItem(e.data, n) for e, n in zip(want, LENGTHS, strict=True)] + items(
        reference(name).encode(tokens, layouts=Layout(4, 16))
    )
    for batch in (mixed, mixed[::-1], mixed * 6, mixed[5:6]):
        for item, got in zip(batch, coder.decode(batch), strict=True):
            assert np.array_equal(got, tokens[LENGTHS.index(item.tokens)])


def test_one_coder_serves_several_threads_at_once() -> None:
    coder, tokens = NativeCoder(model("small"), threads=2), sequences(model("small").shape.vocab)
    with ThreadPoolExecutor(4) as pool:
        for encoded in pool.map(coder.encode, [tokens] * 12):
            assert [e.data for e in encoded] == [e.data for e in frames("small", None, None)]
        for back in pool.map(coder.decode, [items(frames("small", None, None))] * 12):
            assert all(np.array_equal(b, t) for b, t in zip(back, tokens, strict=True))


def test_more_sessions_than_one_iteration_holds() -> None:
    coder = NativeCoder(model("small"), threads=2)
    lengths = tuple(int(n) for n in np.random.default_rng(1).integers(0, 40, 700))
    tokens = sequences(coder.shape.vocab, lengths)
    encoded = coder.encode(tokens)
    assert [e.data for e in encoded] == [e.data for e in reference("small").encode(tokens)]
    assert all(np.array_equal(b, t) for b, t in zip(coder.decode(items(encoded, lengths)), tokens, strict=True))


@cache
def decoded(data: bytes) -> np.ndarray | CorruptError:
    """Return 50 tokens of "small" that the reference decodes from damaged bytes, or the error that it raises."""
    try:
        return reference("small").decode([FrameItem(data, 50, Layout(4, 5))])[0]
    except CorruptError as error:
        return error


@pytest.mark.parametrize("kernel", kernels())
def test_damaged_frames_give_the_reference_tokens_or_the_same_error(kernel: str) -> None:
    coder, rng = NativeCoder(model("small"), kernel=kernel), np.random.default_rng(3)
    streams = [b"", b"\xff" * 8, b"\xff" * 64, b"\0" * 9, b"\xff\xff\xff\xff", b"\x80"]
    streams += [rng.bytes(int(n)) for n in rng.integers(1, 60, 10)]
    streams += [e.data[:-3] for e in frames("small", None, None) if len(e.data) > 3]
    for data in streams:
        item, want = FrameItem(data, 50, Layout(4, 5)), decoded(data)
        if isinstance(want, CorruptError):
            with pytest.raises(CorruptError, match=str(want)):
                coder.decode([item])
        else:
            assert np.array_equal(coder.decode([item])[0], want) and 0 <= want.min() <= want.max() < 512


@pytest.mark.parametrize(
    "tokens", [np.array([0, 512]), np.array([-1]), np.zeros((2, 2), np.int64), np.int64(7)], ids=str
)
def test_what_cannot_be_coded_is_refused_in_the_reference_words(tokens: np.ndarray) -> None:
    with pytest.raises(ContentError) as want:
        reference("small").encode([tokens])
    with pytest.raises(ContentError) as got:
        NativeCoder(model("small")).encode([tokens])
    assert str(got.value) == str(want.value)


def test_wrong_calls_are_refused() -> None:
    coder = NativeCoder(model("small"))
    with pytest.raises(UsageError, match="a layout for each of 1"):
        coder.encode([np.zeros(3, np.int64)], layouts=[])
    with pytest.raises(CorruptError, match="fewer than"):
        coder.decode([FrameItem(b"", 1 << 31)])
    with pytest.raises(UsageError, match="at least 1 thread"):
        NativeCoder(model("small"), threads=0)
    with pytest.raises(UsageError, match=r"expected one of .*plain"):
        NativeCoder(model("small"), kernel="abacus")


def test_the_environment_names_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLTZ_KERNEL", "plain")
    assert NativeCoder(model("small")).kernel == "plain"
    monkeypatch.delenv("PLTZ_KERNEL")
    assert NativeCoder(model("small")).kernel == kernels()[0]


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_code_value_of_zero_ends_as_the_reference_ends_it(lanes: int) -> None:
    """Symbol 0 again and again keeps the lower end at 0: the trimmed end must not eat the words before it."""
    weights, ids = random_weights(5), np.zeros(60, np.int64)
    native = NativeCoder(weights).encode([ids], layouts=cut(lanes, 64))
    reference = TokenCoder(TorchEngine(weights)).encode([ids], layouts=cut(lanes, 64))
    assert native[0].data == reference[0].data and len(native[0].data) > 9


@pytest.mark.parametrize("lanes", range(1, 18))
def test_any_number_of_lanes_decodes_alone(lanes: int) -> None:
    """A kernel takes the rows of a step in runs, and each number of rows has its own runs."""
    tokens = sequences(model("small").shape.vocab, (100,))
    [want] = TokenCoder(TorchEngine(model("small"))).encode(tokens, layouts=cut(lanes, 4))
    for kernel in kernels():
        coder = NativeCoder(model("small"), threads=1, kernel=kernel)
        [got] = coder.encode(tokens, layouts=cut(lanes, 4))
        assert got.data == want.data
        assert np.array_equal(coder.decode([FrameItem(got.data, 100, Layout(lanes, 4))])[0], tokens[0])
