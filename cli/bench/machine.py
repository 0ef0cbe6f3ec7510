"""The conditions of a measurement: machine, versions, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "pltz", "torch", "transformers", "safetensors", "numpy",
    "constriction", "tokenizers", "zstandard", "brotli",
)  # fmt: skip


def describe(coder: object, device: str, threads: int | None) -> dict[str, Any]:
    """Return the machine and the engine that ran on it, in words that a reader can compare."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device": device_name(device),
        "engine": engine_name(coder),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := installed(name)) is not None},
        "commit": commit(),
    }


def installed(package: str) -> str | None:
    """Return the version of a package, or None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the system's name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf8", "replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def engine_name(coder: object) -> str:
    """Return ``torch``, ``cuda``, or ``compiled`` with its instruction set; for None, a codec's choice on the CPU."""
    if coder is None:
        from pltz.plt_codec.engines.native.coder import KERNEL_VARIABLE, kernels

        found = kernels()
        return f"compiled, {os.environ.get(KERNEL_VARIABLE) or found[0]}" if found else "torch"
    if type(coder).__module__.startswith("pltz.plt_codec.engines.cuda"):
        return "cuda"
    kernel = getattr(coder, "kernel", None)
    return "torch" if kernel is None else f"compiled, {kernel}"


def device_name(device: str) -> str:
    """Return ``cpu``, or the name of the GPU."""
    if device == "cpu":
        return device
    import torch

    return torch.cuda.get_device_name(device)


def commit() -> str | None:
    """Return the commit of the checkout this code runs from, with + where it was changed. None outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    try:
        git = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12"]
        done = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    inside = (root / ".git").exists() and done.returncode == 0
    return done.stdout.strip() or None if inside else None
