"""Write a software bill of materials of pltz: CycloneDX JSON, with versions and licences.

    python distributions/sbom.py dist/pltz.cdx.json      # `make sbom`; needs the extra `release`

cyclonedx-py lists what is installed in this environment. Kept are pltz and the packages that it needs, without those
that other tools brought. The parts of the wheel that are no code are added, with their own licences.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = (  # name, kind, folder, licence (docs/licences.md)
    ("bundle mini", "machine-learning-model", "models/bundles/mini", "CC-BY-SA-4.0"),
    ("target mini-llama", "machine-learning-model", "models/targets/mini-llama", "CC-BY-SA-4.0"),
    ("sample sessions", "data", "datasets/sample", "Apache-2.0 AND MIT AND CC-BY-4.0 AND CC0-1.0"),
)


def of_pltz(bill: dict[str, Any]) -> dict[str, Any]:
    """Return the bill without the components that pltz does not need, and with the parts that are no code.

    Raises KeyError where pltz is not in the bill.
    """
    references = {component["name"]: component["bom-ref"] for component in bill["components"]}
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    kept, waiting = set(), [references["pltz"]]
    while waiting:
        reference = waiting.pop()
        if reference not in kept:
            kept.add(reference)
            waiting += needs.get(reference, [])
    parts = [_part(*part) for part in PARTS]
    components = [component for component in bill["components"] if component["bom-ref"] in kept]
    needed = {entry["ref"]: entry for entry in bill["dependencies"] if entry["ref"] in kept}
    inside = [*needs[references["pltz"]], *(part["bom-ref"] for part in parts)]
    needed[references["pltz"]] = {"ref": references["pltz"], "dependsOn": inside}
    return bill | {"components": [*components, *parts], "dependencies": [*needed.values()]}


def _part(name: str, kind: str, folder: str, licence: str) -> dict[str, Any]:
    licences = [{"expression": licence}] if " " in licence else [{"license": {"id": licence}}]
    return {"type": kind, "name": name, "bom-ref": folder, "licenses": licences}


def main(output: Path) -> None:
    """Write the bill of this environment."""
    words = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-format", "JSON", sys.executable]
    made = subprocess.run(words, check=True, stdout=subprocess.PIPE)
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(of_pltz(json.loads(made.stdout)), indent=1) + "\n", "utf8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
