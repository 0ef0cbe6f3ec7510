"""Builds the compiled engine where there is a C compiler; without one the install succeeds and torch does the work."""

import os

from setuptools import Extension, setup

SOURCES = (
    "module",
    "engine",
    "kernel_plain",
    "kernel_avx2",
    "kernel_vnni",
    "kernel_amx",
    "kernel_neon",
)
HEADERS = ("kernel", "kernel_body", "avx512", "amx_attend", "pool")
FLAGS = ["-O3", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
EXTRA = os.environ.get("PLTZ_CFLAGS", "").split()

setup(
    ext_modules=[
        Extension(
            "pltz.plt_codec._native",
            sources=[f"plt_codec/native/{name}.c" for name in SOURCES],
            depends=[f"plt_codec/native/{name}.h" for name in HEADERS],
            extra_compile_args=[*FLAGS, *EXTRA],
            extra_link_args=["-pthread", *EXTRA],
            libraries=["m"],
            optional=True,
        )
    ],
    exclude_package_data={"pltz.plt_codec": ["native/*"]},  # sources belong in the sdist, not in a wheel
)
