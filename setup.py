"""Build the compiled parts, for which there has to be a C compiler.

Where one but those of PPMd and BPE cannot be built, the install succeeds: torch does the engine's work and Python the
rest.
"""

import os
import runpy
import sys

from setuptools import Extension, setup

SOURCES = (
    "module",
    "memory",
    "model",
    "coder",
    "session",
    "batch",
    "layers",
    "head",
    "engine",
    "kernel_plain",
    "kernel_avx2",
    "kernel_vnni",
    "kernel_amx",
    "kernel_neon",
)
HEADERS = (
    "memory",
    "model",
    "coder",
    "session",
    "batch",
    "engine",
    "pool",
    "kernel",
    "kernel_body",
    "finish",
    "avx2_attend",
    "avx512",
    "amx_attend",
    "tiles",
)
FLAGS = ["-O3", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
EXTRA = os.environ.get("PLTZ_CFLAGS", "").split()


def table() -> list[Extension]:
    """Return the modules of a log's table, compiled by mypyc; none where it fails: their sources run, half as fast."""
    log = runpy.run_path("coding/log/compiled.py")
    for room in ("coding", "models", "plt_codec"):
        if not os.path.lexists(f"pltz/{room}"):  # no links are in a source archive
            os.symlink(f"../{room}", f"pltz/{room}")
    sources = [f"pltz/coding/log/{name}.py" for name in log["MODULES"]]
    known = ["pltz/models/session/spelling.py", "pltz/plt_codec/errors.py"]  # types of what is not compiled
    options = ["--config-file=", "--explicit-package-bases", "--follow-imports=skip", "--ignore-missing-imports"]
    try:
        from mypyc.build import mypycify

        made = mypycify(
            [*options, *known, *sources],
            only_compile_paths=sources,
            opt_level="1",  # a tenth of the time is in compiled code: more makes no difference
            debug_level="0",
            group_name=f"pltz.coding.log.{log['LIBRARY']}",
        )
    except (ImportError, SystemExit) as exc:
        print(f"warning: logs will take twice the time, since mypyc failed: {exc}", file=sys.stderr)
        return []
    folder = log["folder"]()
    folder.mkdir(exist_ok=True)  # for an editable install, which copies files there
    for part in made:
        part.name = part.name.replace("pltz.coding.log.", f"pltz.coding.log.{folder.name}.")
        part.optional = True
        part.extra_compile_args = [flag for flag in part.extra_compile_args if flag != "-Werror"] + EXTRA
    return made


setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=[
        *(table() if {"bdist_wheel", "build_ext", "editable_wheel"} & set(sys.argv) else ()),
        Extension(
            "pltz.plt_codec.engines.native._native",
            sources=[f"plt_codec/engines/native/{name}.c" for name in SOURCES],
            depends=[f"plt_codec/engines/native/{name}.h" for name in HEADERS],
            extra_compile_args=[*FLAGS, *EXTRA],
            extra_link_args=["-pthread", *EXTRA],
            libraries=["m"],
            optional=True,
        ),
        Extension(
            "pltz.plt_codec._ppmd",
            sources=["plt_codec/ppmd.c"],
            extra_compile_args=[*FLAGS, *EXTRA],
            extra_link_args=EXTRA,
        ),
        Extension(
            "pltz.models.bundle._bpe",
            sources=["models/bundle/bpe.c"],
            extra_compile_args=[*FLAGS, *EXTRA],
            extra_link_args=EXTRA,
        ),
        Extension(
            "pltz.kv.engines._ans",
            sources=["kv/engines/ans.c"],
            extra_compile_args=[*FLAGS, *EXTRA],
            extra_link_args=EXTRA,
            optional=True,
        ),
        Extension(
            "pltz.kv.pool._attend",
            sources=["kv/pool/attend.c"],
            depends=["kv/pool/attend_body.h"],
            extra_compile_args=[*FLAGS, *EXTRA],
            extra_link_args=EXTRA,
            libraries=["m"],
            optional=True,
        ),
    ],
    # sources belong in the sdist, not in a wheel
    exclude_package_data={
        "pltz.plt_codec.engines.native": ["*.c", "*.h", "*.md"],
        "pltz.plt_codec": ["*.c"],
        "pltz.coding": ["*.c"],
        "pltz.archive.format": ["*.md"],
        "pltz.kv": ["*.md"],
        "pltz.kv.engines": ["ans.c"],
        "pltz.kv.pool": ["attend.c", "attend_body.h"],
        "pltz.kv.store": ["*.md"],
    },
)
