"""SUBJECTS: what measures the rows of the papers' table, in the order of the run."""

from __future__ import annotations

from collections.abc import Callable

from pltz.experiments.papers import (
    agents,
    attention,
    code_length,
    community,
    factors,
    forms,
    joint,
    lossy,
    positions,
    storage,
)
from pltz.experiments.papers.row import PaperRow
from pltz.experiments.papers.work import Work

SUBJECTS: tuple[Callable[[Work], list[PaperRow]], ...] = (
    positions.rows,
    attention.rows,
    storage.rows,
    factors.rows,
    code_length.rows,
    lossy.rows,
    community.rows,
    forms.rows,
    joint.rows,
    agents.rows,  # last: the target attends by pages afterwards
)
