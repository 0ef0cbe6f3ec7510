"""Fixtures that all tests share: a small tokenizer of the bundle's shape, trained on the sample sessions.

``tiny_tokenizer`` is a BundleTokenizer of 1024 ids, ``tiny_tokenizer_json(size)`` the bytes of one of any size,
``sanitizers`` a C compiler that has them, ``target`` the target that ships, ``foreign`` the folder of a tiny model with
a tokenizer of its own. They are fixtures since files named conftest.py cannot be imported in pytest's importlib mode.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from pltz.benchmarks.random_weights import random_weights
from pltz.datasets import sample_sessions
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.bundle.tokenizer import SPECIALS, BundleTokenizer
from pltz.plt_codec.engines.native import coder as native
from tests.examples import EXPLORE, SHARE
from tests.seldom import skip_what_passed

# Test processes run beside each other, and so do those they start: threads of torch would wait for each other's cores.
# The tests of thread counts set their own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
native.DEFAULT_THREADS = 1  # idle helpers of the compiled engine spin: a quarter more processor time

# Without compiled modules, each of the processes that tests start would compile all that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests wait for no disk where memory is a file system, and large enough. What a passed test wrote is removed.
MEMORY, ROOM = Path("/dev/shm"), 8 << 30
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A shared machine stalls for longer than a deadline. The tests walk the same ways each time, so that a red run is of
# the change that it runs on, and fewer: `pytest --hypothesis-profile=explore` walks new ones, as many as tests name.
# Hypothesis would draw constants of the modules that are loaded, so walks would differ by the tests that ran before.
providers._get_local_constants = Constants
settings.register_profile(EXPLORE, deadline=None, print_blob=True)
settings.register_profile("pltz", deadline=None, derandomize=True, max_examples=100 // SHARE)
settings.load_profile("pltz")

LONG = (  # files that take more than 20 s of a processor, the longest first
    "test_cuda.py", "test_schedules.py", "test_documents.py", "test_guarantees.py", "test_cuda_sanitized.py",
    "test_torture.py", "test_kill.py", "test_coder.py", "test_exactness.py", "test_sanitize.py", "test_sanitized.py",
    "test_wheel.py", "test_scheduler.py", "test_server.py", "test_agent_memory.py", "test_train.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what runs seldom. Put long files first, so that no process is left with one of them at the end."""
    skip_what_passed(items)
    order = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONG)))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what archives remember of places out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


WORDS = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def _make(size: int) -> bytes:
    """Train a byte-level BPE of ``size`` ids, as tokenizers JSON: specials at 0..31, the others in mixed order."""
    texts = [message["content"] for session in sample_sessions()[:60] for message in session.value["messages"]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tree = json.loads(tokenizer.to_str())
    names = [f"<|{name}|>" for name in SPECIALS]
    names += sorted(tree["model"]["vocab"], key=lambda piece: piece[::-1])
    tree["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    return json.dumps(tree, ensure_ascii=False).encode()


@pytest.fixture(scope="session")
def tiny_tokenizer_json() -> Callable[..., bytes]:
    """Return ``tiny_tokenizer_json(size=1024)``, which returns a tokenizer JSON. The bytes are always the same."""

    def make(size: int = 1024) -> bytes:
        return _make(size)

    return make


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_tokenizer_json: Callable[..., bytes]) -> BundleTokenizer:
    """Return a BundleTokenizer of 1024 ids."""
    return BundleTokenizer(tiny_tokenizer_json())


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[..., bytes]) -> Bundle:
    """Return a bundle of 1024 ids and random weights, whose memory reaches 32 tokens back, less than a segment."""
    folder = tmp_path_factory.mktemp("bundle")
    weights = random_weights(5, vocab=1024, block=128, memory=32)
    write_bundle(folder, "tiny", weights, tiny_tokenizer_json(), b"", {})
    return Bundle.load(folder)


@pytest.fixture(scope="module")
def target() -> Any:
    """Return the target that ships, in float32: products of bfloat16 depend on the batch."""
    from pltz.models.target.target import Target

    return Target.load("mini-llama", dtype="float32")


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny random llama with a byte-level BPE of its own, special tokens and a ChatML template."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("foreign")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
    )
    tokenizer.train_from_iterator((m["content"] for s in sample_sessions()[:30] for m in s.value["messages"]), trainer)
    wrap: Any = transformers.PreTrainedTokenizerFast
    fast = wrap(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=600, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=2048,
    )
    auto: Any = transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sanitizers() -> tuple[str, str]:
    """Return the C compiler and the library of AddressSanitizer, or skip the test where sanitizers do not work."""
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the sanitizers need Linux and gcc")
    found = []
    for library in ("libasan.so", "libubsan.so"):
        asked = [compiler, f"-print-file-name={library}"]
        found.append(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
        if not os.path.isabs(found[-1]):
            pytest.skip(f"{compiler} comes without {library}")
    return compiler, found[0]
