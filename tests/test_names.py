"""A name stands for one thing: no two classes of the project share one."""

import ast
from collections import defaultdict

from tests.test_heads import FILES, ROOT


def test_a_class_name_has_one_home() -> None:
    homes = defaultdict(list)
    for path in FILES:
        for node in ast.parse((ROOT / path).read_text("utf8")).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path))
    assert not {name: found for name, found in homes.items() if len(found) > 1}
