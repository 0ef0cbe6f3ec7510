"""Fixtures of the experiments: their command line, and the tiny bundle of the tests of commands."""

import pytest
from click.testing import CliRunner, Result

from pltz.experiments.__main__ import experiments
from tests.cli.commands import Run
from tests.cli.conftest import shipped, tiny, trained

__all__ = ["shipped", "tiny", "trained"]


@pytest.fixture
def run() -> Run:
    """Return a function that runs an experiment in this process: ``run("papers", "--json")``."""

    def invoke(*args: object) -> Result:
        return CliRunner().invoke(experiments, [str(arg) for arg in args], prog_name="python -m pltz.experiments")

    return invoke
