"""Fixtures of the benchmarks: their command line, and the tiny bundle of the tests of commands."""

import pytest
from click.testing import CliRunner, Result

from pltz.benchmarks.__main__ import benchmarks
from tests.cli.commands import Run
from tests.cli.conftest import shipped, tiny

__all__ = ["shipped", "tiny"]


@pytest.fixture
def run() -> Run:
    """Return a function that runs a benchmark in this process: ``run("speed", "--json")``."""

    def invoke(*args: object) -> Result:
        return CliRunner().invoke(benchmarks, [str(arg) for arg in args], prog_name="python -m pltz.benchmarks")

    return invoke
