"""Raw logs in pltz beside restic, borg, zpaq and plain zstd: bytes on disk and processor seconds of a few nights.

    python -m pltz.benchmarks.archive.measure_peers agents_test.jsonl.zst

Each record of DATA has a "kind" and a "text", which is one file of a folder. Nights: all but the last tenth of the
lines of each; the same again; all lines; beside them a copy of the largest log under another name. Bytes are those
that a night adds to the sum of sizes of files, under "packed" the sum after a shrink or prune. Then the folder is
restored and compared, byte for byte. Peers that are not installed are left out, and each is at its best settings.
Seconds are those of the processor, of a command and what it starts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from pltz.cli.bench import machine
from pltz.datasets.loaders import load

PLTZ = f"{sys.executable} -m pltz archive"
ZSTD = "zstd -q -19 --long=27"
PEERS = {  # {repo}: where the peer keeps them, {out}: where it restores; it runs beside the folder `logs`
    "pltz": {
        "make": f"{PLTZ} init -r {{repo}}",
        "put": f"{PLTZ} put -q -r {{repo}} logs",
        "pack": f"{PLTZ} shrink -q -r {{repo}} && {PLTZ} collect -r {{repo}} --grace 0s && "
        f"{PLTZ} collect -r {{repo}} --grace 0s",
        "restore": f"{PLTZ} get -q -r {{repo}} -o {{out}}/",
    },
    "restic": {
        "make": "restic -q -r {repo} init",
        "put": "restic -q -r {repo} --compression max backup logs",
        "pack": "restic -q -r {repo} --compression max forget --keep-last 1 --prune --max-unused 0",
        "restore": "restic -q -r {repo} restore latest --target {out}",
    },
    "borg": {
        "make": "borg init --encryption=none {repo}",
        "put": "borg create --compression zstd,22 {repo}::{night} logs",
        "pack": "borg prune --keep-last 1 {repo} && borg compact --threshold 0 {repo}",
        "restore": "mkdir -p {out} && cd {out} && borg extract {repo}::{night}",
    },
    "zpaq": {
        "put": "zpaq add {repo}.zpaq logs -method 5 >/dev/null 2>&1",
        "restore": "mkdir -p {out} && cd {out} && zpaq extract {repo}.zpaq >/dev/null 2>&1",
    },
    "zstd": {
        "make": "mkdir {repo}",
        "put": 'find logs -type f | while read -r f; do o={repo}/$f.zst; [ "$f" -nt "$o" ] || continue; '
        f'mkdir -p "${{{{o%/*}}}}"; {ZSTD} -f -o "$o" "$f"; done',
        "restore": 'cd {repo} && find logs -type f | while read -r f; do mkdir -p "{out}/${{f%/*}}"; '
        'zstd -q -d --long=27 -o "{out}/${{f%.zst}}" "$f"; done',
    },
}
QUIET = {
    "RESTIC_PASSWORD": "pltz",
    "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
}
STEPS = "first", "unchanged", "grown", "a copy", "restore", "packed", "restore"


@click.command()
@click.argument("data", type=click.Path(exists=True))
@click.option(
    "--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Measure this one alone."
)
def main(data: str, peers: tuple[str, ...]) -> None:
    """Print a table of bytes and seconds per peer, and one line of JSON. DATA: a JSONL file of logs."""
    logs = [line.value for line in load(data, "jsonl")]
    found = {}
    click.echo(" " * 8 + "".join(f"{step:>19}" for step in STEPS))
    for name in peers or [name for name in PEERS if name == "pltz" or shutil.which(name)]:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measured(PEERS[name], logs, Path(folder))
        cells = [f"{one['bytes']:>10,} {one['cpu_s']:6.1f}s" for one in found[name].values()]
        click.echo(f"{name:8} {' '.join(f'{cell:>18}' for cell in cells)}")
    about = {
        "raw": sum(len(log["text"].encode()) for log in logs),
        "commit": machine.commit(),
        "cpu": machine.cpu_name(),
    }
    click.echo(json.dumps({"data": data, **found, **about}))


def measured(peer: dict[str, str], logs: list[dict[str, str]], folder: Path) -> dict[str, dict[str, float]]:
    """Return the bytes and the processor seconds of each night, each after all before. Raises ValueError."""
    files = {}
    for n, log in enumerate(logs):
        ending = "json" if log["kind"] == "opencode" else "jsonl"
        place = f"{log['kind']}-{n}/{n:08x}-0000-4000-8000-000000000000.{ending}"
        files[folder / "logs" / place] = log["text"].encode("utf-8", "surrogatepass")
    early = {path: b"".join(lines[: max(1, len(lines) * 9 // 10)]) for path, lines in _lines(files).items()}
    largest = max(files, key=lambda path: len(files[path]))
    copied = largest.with_name("c0c0c0c0-0000-4000-8000-000000000000.jsonl")
    nights = {"first": early, "unchanged": {}, "grown": files, "copy": {copied: files[largest]}}
    found, before = {}, 0
    _seconds(peer.get("make", "true"), folder, "")
    for night, changed in nights.items():
        for path, text in changed.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        spent, size = _seconds(peer["put"], folder, night), _size(folder)
        found[night] = {"bytes": size - before, "cpu_s": spent}
        before = size
    found["restore"] = _restored(peer, folder, files)
    spent = _seconds(peer.get("pack", "true"), folder, "")
    found["packed"] = {"bytes": _size(folder), "cpu_s": spent}
    found["again"] = _restored(peer, folder, files)
    return found


def _size(folder: Path) -> int:
    """Return the bytes that a peer keeps."""
    kept = (path for path in folder.rglob("*") if path.is_file() and folder / "logs" not in path.parents)
    return sum(path.stat().st_size for path in kept)


def _restored(peer: dict[str, str], folder: Path, files: dict[Path, bytes]) -> dict[str, float]:
    """Return the bytes and the seconds of a restore of everything. Raises ValueError where a file is not among it."""
    spent = _seconds(peer["restore"], folder, "copy")
    back = [path.read_bytes() for path in (folder / "out").rglob("*.json*")]
    shutil.rmtree(folder / "out")
    if not {*back}.issuperset(files.values()):
        raise ValueError("a log did not come back")
    return {"bytes": sum(map(len, back)), "cpu_s": spent}


def _lines(files: dict[Path, bytes]) -> dict[Path, list[bytes]]:
    return {path: text.splitlines(keepends=True) for path, text in files.items()}


def _seconds(command: str, folder: Path, night: str) -> float:
    """Return the processor seconds of a shell's command. Raises CalledProcessError where it fails."""
    words = command.format(repo=folder / "repo", out=folder / "out", night=night)
    before = os.times()
    subprocess.run(
        ["bash", "-ec", words],
        cwd=folder,
        check=True,
        env=os.environ | QUIET,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = os.times()
    return round(sum(after[2:4]) - sum(before[2:4]), 2)


if __name__ == "__main__":
    main()
