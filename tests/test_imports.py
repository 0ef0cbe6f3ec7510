"""The arrows between rooms and between their wings, read off the imports.

Nothing imports upwards, not even lazily or for types alone.
"""

import ast
import graphlib
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Rooms from the bottom to the top. A room imports those before it in its row of MAY_IMPORT, and itself.
CORE = {"plt_codec", "models", "datasets", "coding", "archive", "cli", "api", "options"}
MAY_IMPORT = {
    "plt_codec": set[str](), "models": {"plt_codec"}, "datasets": {"models", "plt_codec"},
    "coding": {"models", "plt_codec"}, "archive": {"coding", "datasets", "models", "plt_codec"}, "cli": CORE,
    "kv": CORE, "serving": CORE | {"kv"}, "training": CORE, "benchmarks": CORE | {"kv", "serving", "training"},
    "experiments": CORE | {"kv", "serving", "training", "benchmarks"},
}
# Wings of each room from the bottom to the top. A wing is a folder, or a module at the room's root. It imports wings
# above it in this list, and those in its own line.
WINGS = {
    "plt_codec": (
        "errors extras identity limits named_files offer",
        "varint versions weights lanes types zstd ppmd repeats range_coder", "child_python", "engines", "container",
    ),
    "models": ("bundle", "session", "target"),
    "kv": ("errors port", "engines", "pool predictive", "kv_forms calibrate", "store", "memory thaw", "commands"),
    "serving": ("eviction", "engines", "nightly", "server", "browse live", "commands"),
    "coding": (
        "level look options parts sketch threads workers", "log", "codecs", "decode_limits neighbours", "host_work",
        "decoder", "drafts", "pipeline", "codec", "partners", "session_file",
    ),
    "archive": (
        "errors humanize arguments author work_part", "format", "storage", "encryption", "catalog", "writing",
        "maintenance", "opener retention", "copy holders search", "word_index", "archive version_sizes",
    ),
    "benchmarks": (
        "options peers plots random_weights records speed turns", "archive kv sizes", "exactness trace_session",
        "torture __main__",
    ),
    "experiments": (
        "neighbours compose three_tiers bench_kv kv_peers kv_rows", "learned_kv", "communities", "deployment",
        "archive thaw joint lossy slots stack", "papers", "__main__",
    ),
    "cli": (
        "ui", "above", "bench archive bundle", "compress decompress demo doctor help inspect resume search show",
        "root", "main",
    ),
}
HEAVY = {"torch", "transformers"}
# Files that may ask for a module by a name made at run time: the facade, lazy commands, and peers that are optional.
ABOVE = Path("cli/above.py")  # names the commands of the rooms above the core, which load when they are called
BY_NAME = {
    "datasets/secrets.py", "plt_codec/offer.py", "cli/ui/groups.py", "benchmarks/peers/compressors.py",
    "benchmarks/peers/context_mixing.py",
}
LAZY = re.compile(r"pltz(\.\w+)+:\w+")  # a command by name, as `cli.ui.groups.LazyGroup` takes it
FILES = [path.relative_to(ROOT) for room in MAY_IMPORT for path in sorted((ROOT / room).rglob("*.py"))]
MODULES = {("pltz", *path.with_suffix("").parts): path for path in FILES}


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of each file."""
    return {path: ast.parse((ROOT / path).read_text("utf8")) for path in FILES}


def imports(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a node imports, a relative import as ``.``; and the command that a string names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = "." if node.level else str(node.module)
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and LAZY.fullmatch(node.value):
        yield node.value.replace(":", ".")


@cache
def all_imports() -> dict[Path, list[tuple[int, str]]]:
    """Return the line and the dotted name of every import of each file: lazy ones and those for types alone, too."""
    return {
        path: [(node.lineno, name) for node in ast.walk(tree) for name in imports(node)]  # type: ignore[attr-defined]
        for path, tree in trees().items()
    }


def at_import_time(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, without those under ``if TYPE_CHECKING``."""
    for node in tree.body:
        if isinstance(node, ast.If):
            if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
                yield from (*node.body, *node.orelse)
        elif isinstance(node, ast.Try):
            yield from (*node.body, *(s for handler in node.handlers for s in handler.body), *node.orelse)
        else:
            yield node


def module_of(name: str) -> tuple[str, ...] | None:
    """Return the project's module that a dotted name is, or is a name of."""
    parts = tuple(name.split("."))
    return next((p for p in (parts, parts[:-1]) if p in MODULES or (*p, "__init__") in MODULES), None)


def wing_of(room: str, wing: str) -> int | None:
    """Return the line of WINGS that a wing stands in, None where it stands in none."""
    return next((n for n, names in enumerate(WINGS[room]) if wing in names.split()), None)


def test_imports_follow_the_arrows_between_rooms() -> None:
    wrong = []
    for path, names in all_imports().items():
        room = path.parts[0]
        for line, name in names:
            parts = name.split(".")
            if parts[0] in MAY_IMPORT or not parts[0]:
                wrong.append(f"{path}:{line} imports {name}: say pltz.{name}")
            elif path != ABOVE and parts[0] == "pltz" and parts[1:2] and parts[1] not in MAY_IMPORT[room] | {room}:
                wrong.append(f"{path}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_imports_follow_the_arrows_between_wings() -> None:
    wrong = []
    for path, names in all_imports().items():
        room = path.parts[0]
        if room not in WINGS or len(path.parts) == 1 or (path.name == "__init__.py" and len(path.parts) == 2):
            continue
        wing = path.parts[1].removesuffix(".py")
        here = wing_of(room, wing)
        assert here is not None, f"{path}: name its wing in WINGS"
        for _, name in names:
            target = module_of(name)
            if target is None or target[1:2] != (room,) or len(target) < 3 or target[2] == wing:
                continue
            there = wing_of(room, target[2])
            if there is None or there > here:
                wrong.append(f"{path} imports {name}, which stands above it")
    assert not wrong, "\n".join(wrong)


def test_rooms_above_the_core_take_of_it_what_its_rooms_offer() -> None:
    wrong = []
    for path, names in all_imports().items():
        if path.parts[0] in ("kv", "serving", "training"):
            for line, name in names:
                parts = name.split(".")
                if parts[0] == "pltz" and parts[1] in CORE and len(parts) > 3:
                    wrong.append(f"{path}:{line} imports {name}: offer it in {parts[1]}/__init__.pyi")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ["", *sorted(CORE - {"api", "options"})])
def test_what_a_room_offers_is_there_and_is_no_module(room: str) -> None:
    package = importlib.import_module(f"pltz.{room}".rstrip("."))
    offered = set(package.__all__) - {"__version__"}
    assert offered and all(getattr(package, name) is not None for name in offered)
    assert not {name for name in offered if importlib.util.find_spec(f"{package.__name__}.{name}")}


def test_no_import_of_any_kind_closes_a_circle() -> None:
    """Imports inside of functions and those for types count, too."""
    graph: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module, path in MODULES.items():
        targets = {module_of(name) for _, name in all_imports()[path]}
        graph[module] = {t for t in targets if t is not None and t in MODULES and t != module}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_a_command_by_name_is_an_import() -> None:
    """So the tests of arrows see the tables of lazy groups."""
    assert "pltz.cli.compress.compress" in {name for _, name in all_imports()[Path("cli/root.py")]}


def test_no_importlib_hides_an_arrow() -> None:
    found = {
        str(path)
        for path, tree in trees().items()
        if "import_module" in (ROOT / path).read_text("utf8")  # few have it: the others need no walk
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "import_module"
    }
    assert found <= BY_NAME


def test_no_tensors_at_import_time() -> None:
    """Commands and the archive load no torch before they need it; engines and training may."""
    wrong = [
        str(path) for path, tree in trees().items() if path.parts[0] in ("cli", "archive", "datasets")
        and {name.split(".")[0] for node in at_import_time(tree) for name in imports(node)} & HEAVY
    ]
    assert not wrong


def test_every_room_is_reached_through_the_facade() -> None:
    for room in MAY_IMPORT:
        assert (ROOT / "pltz" / room).resolve() == ROOT / room


def test_importing_pltz_loads_nothing_heavy() -> None:
    code = "import sys, pltz; sys.exit(', '.join({'torch', 'transformers', 'numpy'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
