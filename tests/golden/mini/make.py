"""Write the golden files of an embedded bundle, one .pltz file a layout. Only for a new bundle or format version;
files that exist are never written again, since whatever was frozen once must thaw for ever.

    python tests/golden/mini/make.py [BUNDLE]
"""

import json
import sys
from pathlib import Path

from pltz.coding.codec import Codec
from pltz.datasets import sample_sessions
from pltz.models.session.session import Session
from pltz.plt_codec.lanes import LayoutName

HERE = Path(__file__).parent
LAYOUTS: tuple[LayoutName, ...] = ("default", "fast")


def sessions() -> list[Session]:
    """Chats of several lengths, a text and token ids."""
    chats = sorted(sample_sessions(), key=lambda s: len(s.to_bytes()))
    return [
        *(chats[i] for i in (0, 60, 120, 170)),
        Session("text", "The quick brown fox jumps over the lazy dog. Größe, 中文, \x00\x7f".encode()),
        Session("text", b"def f(x):\n    return x + 1\n\xff\xfe"),
        Session("text", b""),
        Session("ids", [2, 100, 5000, 16383, 0, 31, 200, 200, 200]),
    ]


def main() -> None:
    """See the head of this file."""
    codec = Codec.load(sys.argv[1] if len(sys.argv) > 1 else "mini")
    for layout in LAYOUTS:
        path = HERE / f"{codec.bundle.id.hex()}-{layout}.pltz"
        if path.exists():
            continue
        path.write_bytes(codec.compress(sessions(), layout=layout))
        print(json.dumps({"file": path.name, "bytes": path.stat().st_size}))


if __name__ == "__main__":
    main()
