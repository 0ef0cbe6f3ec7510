"""Context mixing as a peer: zpaq in this process, paq8px as a command. Both are optional.

They have the field's best rates and by far its highest cost. As in `peers`, every doubt is decided for the peer. Bytes
that are the same for all data of a length are not counted (zpaq's header holds the whole model as a program, 200
bytes), nor is a magic number.

    peer    settings                                                                 bytes of 120 sample sessions
    zpaq    orders 0 to 6, words, a match model, two mixers (level 5: +1.2 %)        156,816 (ppmd: 161,054)
    paq8px  level 1, no training first (with its English dictionary: 40 s/session)   -

cmix was left out: it needs more than 20 GB of memory.
"""

import functools
import importlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from pltz.cli.bench.codec.compressors import Peer

ZPAQ_METHOD = "x0,0ci1,1,1,1,1,1,2aw2mm16ts19t0"
ZPAQ_TAG = bytes.fromhex("376b5374a03183d38cb228b0d3")  # every archive starts with it
ZPAQ_END = bytes.fromhex("00000000feff")  # end of the data, without a checksum, and of the archive
PAQ8PX = "paq8px"
PAQ8PX_LEVEL = "-1"
PAQ8PX_MAGIC = b"paq8px"
SECONDS = 600  # a call may take


def zpaq_peer() -> Peer:
    """Return libzpaq on one thread, without the bytes that are the same for all data of a length.

    Raises ImportError where it is not installed.
    """
    zpaq = importlib.import_module("zpaq")

    def archive(data: bytes) -> bytes:
        found: bytes = zpaq.compress(data, method=ZPAQ_METHOD, threads=1)
        return found

    @functools.cache
    def model() -> bytes:
        """Return the bytes with which archives of this method begin, up to the length of the data in digits."""
        whole = archive(b"\0")
        return whole[: whole.rindex(b"\x001\0\0")]

    def start(length: int) -> bytes:
        return model() + b"\0%d\0\0" % length

    def encode(data: bytes) -> bytes:
        if not data:
            return b""
        whole, head = archive(data), start(len(data))
        framed = whole.startswith(head) and whole.endswith(ZPAQ_END)
        return whole[len(head) : -len(ZPAQ_END)] if framed else whole

    def decode(data: bytes, length: int) -> bytes:
        if not length:
            return b""
        whole = data if data.startswith(ZPAQ_TAG) else start(length) + data + ZPAQ_END
        try:
            found: bytes = zpaq.decompress(whole, threads=1)
        except zpaq.Error as exc:
            raise ValueError(str(exc)) from exc
        return found

    return Peer("zpaq", f"libzpaq, method {ZPAQ_METHOD}, header not counted", encode, decode)


def paq8px_peer() -> Peer | None:
    """Return paq8px, or None where the command is not on the PATH. It takes a process each way, through files."""
    command = shutil.which(PAQ8PX)
    if command is None:
        return None

    def call(option: str, data: bytes) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in"), Path(folder, "out")
            source.write_bytes(data)
            call = [command, option, str(source), str(target)]
            done = subprocess.run(call, capture_output=True, timeout=SECONDS, check=False)
            if done.returncode or not target.exists():
                raise ValueError(f"{PAQ8PX} failed: {done.stderr[-200:].decode('utf8', 'replace')}")
            return target.read_bytes()

    def encode(data: bytes) -> bytes:
        return call(PAQ8PX_LEVEL, data).removeprefix(PAQ8PX_MAGIC) if data else b""

    def decode(data: bytes, length: int) -> bytes:
        return call("-d", PAQ8PX_MAGIC + data) if length else b""

    return Peer(PAQ8PX, f"level {PAQ8PX_LEVEL[1:]}, magic number not counted", encode, decode)
