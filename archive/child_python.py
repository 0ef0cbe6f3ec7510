"""Child Python: a process of the same Python and the same pltz that imports nothing from the current directory.

    subprocess.Popen(command("from pltz.archive.eviction.background import main; main()"), env=environment())
    with safe_path():
        multiprocessing.get_context("spawn").Process(...).start()

``python -m`` and ``python -c`` put the current directory before everything else, so a ``zstandard.py`` that lies there is executed. A child of
`command` is started with ``-P``, which leaves it out, and finds its modules by:

- pltz: exactly the folder this process has it from, whatever the path says; so a checkout that is the current directory works, too
- the environment's PYTHONPATH, but for empty entries: they mean the current directory, and nobody writes them on purpose
- the rest of this process's path, as it may have been changed by its program, but for the current directory
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pltz

START = """\
import importlib.util, json, sys
file, folders, code = json.loads(sys.argv.pop(1))
spec = importlib.util.spec_from_file_location("pltz", file, submodule_search_locations=folders)
sys.modules["pltz"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
exec(compile(code, "<pltz>", "exec"))
"""
SAFE, OURS = (
    "PYTHONSAFEPATH",
    "pltz",
)  # the variable that does what -P does, and its value where it was set here


def command(code: str, *arguments: object) -> list[str]:
    """Return the command that runs code, with ``arguments`` as its sys.argv[1:]. Start it with `environment`."""
    assert pltz.__file__ is not None
    folders = [os.path.abspath(folder) for folder in pltz.__path__]
    pinned = json.dumps([os.path.abspath(pltz.__file__), folders, code])
    return [sys.executable, "-P", "-c", START, pinned, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return this process's environment with the PYTHONPATH of a child."""
    named = os.environ.get("PYTHONPATH", "") if not sys.flags.ignore_environment else ""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search_path(sys.path, named.split(os.pathsep)))}


def search_path(path: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return where a child looks for modules: ``path`` without the current directory, unless it is among those ``named`` on purpose."""
    here = _current()
    wanted = {os.path.realpath(entry) for entry in named if entry}
    found = [os.path.abspath(entry) for entry in path if isinstance(entry, str) and entry]
    return [entry for entry in found if (real := os.path.realpath(entry)) != here or real in wanted]


@contextmanager
def safe_path() -> Iterator[None]:
    """Have processes that are started within leave the current directory out of their path: multiprocessing takes no option for it.

    Each of them calls `leave_safe_path`, so that what it starts itself is not concerned.
    """
    if os.environ.get(SAFE):
        yield
        return
    os.environ[SAFE] = OURS
    try:
        yield
    finally:
        leave_safe_path()


def leave_safe_path() -> None:
    """Take the variable that `safe_path` set out of the environment: a key command in Python may need its neighbours."""
    if os.environ.get(SAFE) == OURS:
        del os.environ[SAFE]


def _current() -> str | None:
    """Return the current directory; None where it was removed."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return None
