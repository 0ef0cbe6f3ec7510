"""Train a configuration's student or teacher from existing streams, in calls that may end before the training does.

    python -m pltz.models.training.train base.toml --streams data --out teacher --start before --teach --gpus 4
    python -m pltz.models.training.train base.toml --streams data --out run --start base --teacher teacher \\
        --gpus 4 --call 580

This is for machines that have the streams (prepare.py) and the nets but not the sessions. `pltz bundle train`
does the same as one of its stages, by the same loop (trainer.py). Nets are those of bundles, by name or folder,
or folders as net_files.py writes them.
Called again with the same `--out` it goes on. It ends with one line of JSON, the report.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import time
from pathlib import Path

import torch

from pltz.models.bundle.folder import publish
from pltz.models.training import job, settings
from pltz.models.training.origin import Origin
from pltz.models.training.trainer import Place, fit

ENDING = 25.0  # most seconds for saving and ending


def placed(origin: Origin, tokenizer: bytes, out: Path) -> Path:
    """Return the folder of an origin's net; a bundle's is made once, in `out`.

    Raises:
        UsageError: the tokenizer does not fit.
        ModelError: the net cannot be read.
    """
    origin.check_tokenizer(tokenizer)
    if origin.bundle is None:
        return Path(origin.name)
    final = out / f"net-{origin.key}"
    if not final.is_dir():
        part = final.with_name(final.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        origin.write(part)
        publish(part, final)
    return final


def main() -> None:
    """Run the command line described at the top of this file."""
    begin = time.monotonic()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "config", type=Path, help="configuration of pltz bundle train: [data], [teacher], [student], seed"
    )
    p.add_argument("--streams", type=Path, required=True, help="folder of token streams")
    p.add_argument("--out", type=Path, required=True, help="folder of the run")
    p.add_argument(
        "--start", help="bundle or net to start from, by name or folder, instead of the configuration's"
    )
    p.add_argument("--teacher", help="bundle or net to learn from, likewise")
    p.add_argument("--teach", action="store_true", help="train the configuration's teacher, not its student")
    p.add_argument("--gpus", type=int, default=torch.cuda.device_count(), help="how many; 0: the CPU")
    p.add_argument("--seconds", type=float, help="of training in all, instead of the configuration's")
    p.add_argument("--call", type=float, default=math.inf, help="seconds after which this call ends, all in")
    a = p.parse_args()
    s = settings.load(a.config)
    taught_by = a.teacher or (s.teacher.bundle if s.teacher else "")
    own = s.teacher is not None and not s.teacher.target and not taught_by
    if a.teach and not own:
        p.error(
            "--teach needs a [teacher] that is a net of our own: neither target nor bundle, and no --teacher"
        )
    if s.teacher and s.teacher.share and own and not a.teach:
        p.error(
            "the configuration has a net as its teacher: train it by --teach, then name its folder by --teacher"
        )
    tokenizer = (a.streams / "tokenizer.json").read_bytes()
    a.out.mkdir(parents=True, exist_ok=True)
    vocab = len(json.loads(tokenizer)["model"]["vocab"])
    what = job.teacher(s, a.streams, vocab, None) if a.teach else job.student(s, a.streams, vocab, None, None)
    if a.seconds:
        what = dataclasses.replace(what, plan=dataclasses.replace(what.plan, seconds=a.seconds, steps=0))
    part = s.teacher if a.teach and s.teacher else s.student
    if start := a.start or part.start:
        origin = Origin(start, "--start" if a.start else f"[{'teacher' if a.teach else 'student'}] start")
        origin.check_shape(what.config)
        what = dataclasses.replace(what, start=placed(origin, tokenizer, a.out))
    if taught_by:
        what = dataclasses.replace(what, teacher=placed(Origin(taught_by, "--teacher"), tokenizer, a.out))
    with (a.out / "log.txt").open("a", encoding="utf8") as log:

        def say(line: str) -> None:
            line = f"{time.monotonic() - begin:7.1f} s  {line}"
            print(line, flush=True)
            print(line, file=log, flush=True)

        place = Place("cuda" if a.gpus else "cpu", say, max(1, a.gpus), begin + a.call - ENDING)
        report = fit(what, a.out, place)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
