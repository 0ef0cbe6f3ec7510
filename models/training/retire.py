"""Keep a bundle that another takes the place of, as its differences from that one (models/FORMAT.md, "Differences").

    python -m pltz.models.training.retire --bundle models/bundles/base-of-before --origin models/bundles/base --name base-1 --out models/bundles/base-1

What was frozen with it thaws as before: its id is the same. So `base-1` was made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pltz.models.bundle import Bundle, write_bundle
from pltz.models.training.card import as_markdown


def main() -> None:
    """Command line: see the head of this file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bundle", required=True, help="name or folder of the one that goes")
    p.add_argument("--origin", required=True, help="name or folder of the one that stays, embedded")
    p.add_argument("--name", required=True, help="what the first is called from now on")
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    old, card = Bundle.load(a.bundle), {**Bundle.load(a.bundle).card, "name": a.name}
    parts = old.weights, old.tokenizer.json, old.zstd_dict
    write_bundle(a.out, a.name, *parts, card, origin=Bundle.load(a.origin))
    if "runs" in card.get("training", {}):  # of the bundles that ship
        (a.out / "CARD.md").write_text(as_markdown(card))


if __name__ == "__main__":
    main()
