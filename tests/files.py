"""Files that tests write, hurt and look at."""

from collections.abc import Mapping
from pathlib import Path


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder, and return the folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def key_file(path: Path, key: bytes = bytes(range(32))) -> Path:
    """Write a key that its owner alone may read."""
    path.write_bytes(key)
    path.chmod(0o600)
    return path


def flip(path: Path, at: int, bits: int = 1) -> Path:
    """Flip bits of a byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.chmod(0o600)
    path.write_bytes(data)
    return path
