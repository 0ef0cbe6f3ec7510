"""Child Python: a process of the same Python and pltz, with nothing imported from the current directory.

    subprocess.Popen(command("from pltz.serving.eviction.background import main; main()"), env=environment())

``python -m`` and ``python -c`` put the current directory before everything else, so a ``zstandard.py`` there would be
executed. A child of `command` starts with ``-P``, which leaves it out, and finds its modules in this order:

- pltz: exactly the folder from which this process has it, so a checkout that is the current directory works too
- the environment's PYTHONPATH without empty entries, which mean the current directory and are never intended
- the rest of this process's path, as its program may have changed it, without the current directory
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import pltz

START = """\
import importlib.util, json, sys
file, folders, code = json.loads(sys.argv.pop(1))
spec = importlib.util.spec_from_file_location("pltz", file, submodule_search_locations=folders)
sys.modules["pltz"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
exec(compile(code, "<pltz>", "exec"))
"""


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
    """Return the folders in which a child looks for modules.

    They are ``path`` without the current directory, unless it is in ``named``, the entries that the user chose.
    """
    here = _current()
    wanted = {os.path.realpath(entry) for entry in named if entry}
    found = [os.path.abspath(entry) for entry in path if isinstance(entry, str) and entry]
    return [entry for entry in found if (real := os.path.realpath(entry)) != here or real in wanted]


def _current() -> str | None:
    """Return the current directory; None if it was removed."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return None
