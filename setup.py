"""Builds the compiled engine where there is a C compiler; without one the install succeeds and torch does the work."""

import os

from setuptools import Extension, setup

SOURCES = ("module", "engine", "kernel_plain", "kernel_avx2", "kernel_vnni", "kernel_amx", "kernel_neon")

setup(
    ext_modules=[
        Extension(
            "pltz.plt_codec._native",
            sources=[f"plt_codec/native/{name}.c" for name in SOURCES],
            depends=[f"plt_codec/native/{name}.h" for name in ("kernel", "kernel_body", "avx512", "pool")],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
            + os.environ.get("PLTZ_CFLAGS", "").split(),
            extra_link_args=["-pthread", *os.environ.get("PLTZ_CFLAGS", "").split()],
            libraries=["m"],
            optional=True,
        )
    ]
)
