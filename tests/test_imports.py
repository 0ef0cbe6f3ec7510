"""The arrows between the packages, read off the imports: cli -> archive -> models -> plt_codec."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("plt_codec", "models", "archive", "datasets", "cli")
MAY_IMPORT = {
    "plt_codec": {"plt_codec"},
    "models": {"models", "plt_codec"},
    "archive": {"archive", "datasets", "models", "plt_codec"},
    "datasets": {"datasets", "models", "plt_codec"},
    "cli": {"cli", "archive", "datasets", "models", "plt_codec", "api"},
}
HEAVY = {"torch", "transformers"}
FILES = [path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports(node: ast.AST) -> Iterator[str]:
    """Dotted names one statement imports; a relative import as ``.``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = "." if node.level else str(node.module)
        yield from (f"{base}.{alias.name}" for alias in node.names)


def at_import_time(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported, those under ``if TYPE_CHECKING`` left out."""
    for node in tree.body:
        if isinstance(node, ast.If):
            if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
                yield from (*node.body, *node.orelse)
        elif isinstance(node, ast.Try):
            yield from (*node.body, *(s for handler in node.handlers for s in handler.body), *node.orelse)
        else:
            yield node


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_follow_the_arrows(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text("utf8"))
    for node in ast.walk(tree):
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        for name in imports(node):
            parts = name.split(".")
            assert parts[0] not in PACKAGES, f"{where} imports {name}: say pltz.{name}"
            assert parts[0] != "", f"{where} imports relatively: say pltz...."
            if parts[0] == "pltz" and parts[1:2]:
                assert parts[1] in MAY_IMPORT[path.parts[0]], f"{where} imports {name}"


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] in ("cli", "archive", "datasets")], ids=str)
def test_no_tensors_at_import_time(path: Path) -> None:
    """What `pltz --help` and `pltz inspect` read loads no torch; engines and training may."""
    tree = ast.parse((ROOT / path).read_text("utf8"))
    found = {name.split(".")[0] for node in at_import_time(tree) for name in imports(node)}
    assert not found & HEAVY


def test_every_package_is_reached_through_the_facade() -> None:
    for package in PACKAGES:
        link = ROOT / "pltz" / package
        assert link.resolve() == ROOT / package


def test_importing_pltz_loads_nothing_heavy() -> None:
    code = "import sys, pltz; sys.exit(', '.join({'torch', 'transformers', 'numpy'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
