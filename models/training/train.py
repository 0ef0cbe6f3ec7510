"""Train the student of a configuration from streams that are there already, in calls that may end before the training does.

    python -m pltz.models.training.train base.toml --streams data --out run --start net --gpus 4 --call 580

For machines that have the streams (prepare.py) and the nets but not the sessions; `pltz bundle train` does this as one of its stages, by the same
loop (fit.py). Nets are folders as rounded.py writes them; `--parcel` leaves the trained one in pieces that travel (parcel.py). Called again with the same
`--out` it goes on. Ends with one line of JSON, the report.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path

import torch

from pltz.models.training import job, parcel, settings
from pltz.models.training.fit import CONFIG, NET, REPORT, Place, fit

ENDING = 25.0  # seconds that saving, packing and ending take at most


def main() -> None:
    """Command line: see the head of this file."""
    begin = time.monotonic()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "config", type=Path, help="configuration of pltz bundle train: [data], [teacher], [student], seed"
    )
    p.add_argument("--streams", type=Path, required=True, help="folder of token streams")
    p.add_argument("--out", type=Path, required=True, help="folder of the run")
    p.add_argument("--start", type=Path, help="net to start from, by folder")
    p.add_argument("--teacher", type=Path, help="net to learn from, by folder")
    p.add_argument("--gpus", type=int, default=torch.cuda.device_count(), help="how many; 0: the CPU")
    p.add_argument("--seconds", type=float, help="of training in all, instead of the configuration's")
    p.add_argument("--call", type=float, default=math.inf, help="seconds after which this call ends, all in")
    p.add_argument("--parcel", type=Path, help="folder for the trained net in pieces")
    a = p.parse_args()
    s = settings.load(a.config)
    if s.teacher and s.teacher.share and not s.teacher.target and a.teacher is None:
        p.error("the configuration has a net as its teacher: name its folder by --teacher")
    if a.seconds:
        s = dataclasses.replace(s, student=dataclasses.replace(s.student, seconds=a.seconds, steps=0))
    vocab = len(json.loads((a.streams / "tokenizer.json").read_text("utf8"))["model"]["vocab"])
    what = job.student(s, a.streams, vocab, a.start, a.teacher)
    a.out.mkdir(parents=True, exist_ok=True)
    with (a.out / "log.txt").open("a", encoding="utf8") as log:

        def say(line: str) -> None:
            line = f"{time.monotonic() - begin:7.1f} s  {line}"
            print(line, flush=True)
            print(line, file=log, flush=True)

        place = Place("cuda" if a.gpus else "cpu", say, max(1, a.gpus), begin + a.call - ENDING)
        report = fit(what, a.out, place)
    if a.parcel:
        size = parcel.pack([a.out / name for name in (NET, CONFIG, REPORT, "log.txt")], a.parcel, "net")
        print(f"{a.parcel}: {size / 1e6:.1f} MB", flush=True)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
