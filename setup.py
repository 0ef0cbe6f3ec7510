"""Build the compiled parts where there is a C compiler.

Without one the install succeeds: torch does the engine's work and Python the rest.
"""

import os

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

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=[
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
            "pltz.plt_codec.container._block_columns",
            sources=["plt_codec/container/block_columns.c"],
            extra_compile_args=[*FLAGS, *EXTRA],
            extra_link_args=EXTRA,
            optional=True,
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
        "pltz.plt_codec.container": ["*.c"],
        "pltz.coding": ["*.c"],
        "pltz.archive.format": ["*.md"],
        "pltz.kv": ["*.md"],
        "pltz.kv.engines": ["ans.c"],
        "pltz.kv.pool": ["attend.c", "attend_body.h"],
        "pltz.kv.store": ["*.md"],
    },
)
