"""The C code of PPMd, BPE and KV under its tests, with AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.compiled import compiled, preprocessed

ROOT = Path(__file__).parents[2]
MODULES = {  # the module, its source, its tests
    "pltz.plt_codec._ppmd": ("plt_codec/ppmd.c", "tests/plt_codec/test_ppmd.py"),
    "pltz.models.bundle._bpe": ("models/bundle/bpe.c", "tests/models/bundle/test_tokenizer.py"),
    "pltz.kv.engines._ans": ("kv/engines/ans.c", "tests/kv/engines/test_streams.py"),
}
FLAGS = [
    "-O1", "-g1", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
]  # fmt: skip
PLUGIN = """
import sys
from importlib.util import module_from_spec, spec_from_file_location

for name, path in {built!r}.items():
    spec = spec_from_file_location(name, path)
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
"""


@pytest.mark.slow
@pytest.mark.seldom(*(file for pair in MODULES.values() for file in pair), "kv/engines/*.h")
def test_no_sanitizer_complains(tmp_path: Path, sanitizers: tuple[str, str]) -> None:
    compiler, asan_library = sanitizers
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        pytest.skip("the headers of Python are not here")
    command = [compiler, *FLAGS, f"-I{include}"]
    built = {}
    for name, (file, _) in MODULES.items():
        source = ROOT / file

        def make(part: Path, source: Path = source) -> None:
            subprocess.run([*command, str(source), "-o", str(part)], check=True)

        built[name] = str(compiled(".so", command, preprocessed(command, [source]), make))
    (tmp_path / "sanitized.py").write_text(PLUGIN.format(built=built))
    # Leaks are not checked: the interpreter's own would hide ours.
    asan = {"LD_PRELOAD": asan_library, "ASAN_OPTIONS": "detect_leaks=0"}
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    tests = [*(test for _, test in MODULES.values())]
    pytest_words = [sys.executable, "-m", "pytest", "-p", "sanitized", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest_words, "-s", "-q", "-k", "not seven_zip", *tests],
        cwd=ROOT,
        env={**os.environ, **asan, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
