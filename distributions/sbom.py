"""Write a software bill of materials of pltz: CycloneDX JSON, with versions and licences.

    python distributions/sbom.py dist/pltz.cdx.json      # `make sbom`; needs the extra `release`

cyclonedx-py lists what is installed in this environment. Kept are pltz and the packages that it needs, without those
that other tools brought. The parts of the wheel that are no code are added, with their own licences.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PARTS = (  # name, kind, folder, licence (docs/licences.md)
    ("bundle mini", "machine-learning-model", "models/bundles/mini", "CC-BY-SA-4.0"),
    ("bundle nano", "machine-learning-model", "models/bundles/nano", "CC-BY-SA-4.0"),
    ("target mini-llama", "machine-learning-model", "models/targets/mini-llama", "CC-BY-SA-4.0"),
    ("sample sessions", "data", "datasets/sample", "Apache-2.0 AND MIT AND CC-BY-4.0 AND CC0-1.0"),
)


def needed_by(name: str) -> set[str]:
    """Return the normalised names of a distribution and of all that it needs, with the extras named, as pltz[thaw]."""
    found: set[str] = set()
    waiting = [Requirement(name)]
    while waiting:
        requirement = waiting.pop()
        normal = canonicalize_name(requirement.name)
        if normal in found and not requirement.extras:
            continue
        found.add(normal)
        for line in importlib.metadata.requires(normal) or ():
            below = Requirement(line)
            extras = ("", *requirement.extras)
            if below.marker is None or any(below.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(below)
    return found


def of_pltz(bill: dict[str, Any], needed: set[str]) -> dict[str, Any]:
    """Return the bill with the components in ``needed``, and with the parts that are no code.

    Raises StopIteration where pltz is not in the bill.
    """
    components = [one for one in bill["components"] if canonicalize_name(one["name"]) in needed]
    kept = {component["bom-ref"] for component in components}
    pltz = next(component["bom-ref"] for component in components if component["name"] == "pltz")
    parts = [_part(*part) for part in PARTS]
    dependencies = []
    for entry in bill["dependencies"]:
        if entry["ref"] in kept:
            below = [reference for reference in entry.get("dependsOn", []) if reference in kept]
            below += [part["bom-ref"] for part in parts if entry["ref"] == pltz]
            dependencies.append({"ref": entry["ref"], "dependsOn": below})
    return bill | {"components": [*components, *parts], "dependencies": dependencies}


def _part(name: str, kind: str, folder: str, licence: str) -> dict[str, Any]:
    licences = [{"expression": licence}] if " " in licence else [{"license": {"id": licence}}]
    return {"type": kind, "name": name, "bom-ref": folder, "licenses": licences}


def main(output: Path) -> None:
    """Write the bill of this environment."""
    words = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-format", "JSON", sys.executable]
    made = subprocess.run(words, check=True, stdout=subprocess.PIPE)
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(of_pltz(json.loads(made.stdout), needed_by("pltz[all]")), indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
