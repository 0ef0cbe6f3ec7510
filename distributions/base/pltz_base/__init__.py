"""The bundle `base` of pltz, which finds it by the entry point `base` of the group `pltz.bundles`."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "bundle"
