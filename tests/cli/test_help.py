"""Every command says what it does and shows an example that parses."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest
from click.testing import CliRunner, Result

from pltz.cli.root import cli
from pltz.cli.ui.archive_options import OPTIONS
from pltz.cli.ui.groups import EXIT_CODES, Command
from pltz.plt_codec import errors
from tests.cli.commands import ok


def walk(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))


COMMANDS = dict(walk(cli, ()))
NAMES = """
show search browse resume live compress decompress inspect thaw nightly serve demo doctor
bench:codec hold:add,release,ls audit target:calibrate hook:drain,status
archive:init,put,get,ls,stat,verify,repair,forget,undelete,collect,shrink,rekey,erase,copy,join
bundle:show,add,train,distill
llama:freeze,import,thaw,watch
"""
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}


def test_the_commands_are_the_documented_ones() -> None:
    groups = (word.partition(":") for word in NAMES.split())
    named = {f"{group} {name}".strip() for group, _, names in groups for name in names.split(",")}
    assert {" ".join(path) for path in LEAVES} == named


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_page(path: tuple[str, ...], run: Callable[..., Result]) -> None:
    done, command = ok(run(*path, "--help")), COMMANDS[path]
    assert command.help and command.help[0].isupper()
    if isinstance(command, Command):
        assert "Examples:" in done.output and "Exit codes:" not in done.output
        assert all(example in done.output for example in command.examples)


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_examples_parse(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    assert isinstance(command, Command) and command.examples
    for example in command.examples:
        words = re.split(r" [<>|] ", example)[0].split()
        assert words[: len(path) + 1] == ["pltz", *path]
        command.make_context("pltz", words[len(path) + 1 :])


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_options_have_help(path: tuple[str, ...]) -> None:
    for parameter in LEAVES[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            named = parameter.metavar or parameter.is_flag or isinstance(parameter.type, click.Choice)
            assert named, f"{parameter.name}: its value needs a short name, not {parameter.type.name}"


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_speaks_json(path: tuple[str, ...]) -> None:
    assert "--json" in {word for parameter in LEAVES[path].params for word in parameter.opts}


def test_exit_codes_cover_the_error_tree() -> None:
    listed = {int(code) for code, _ in EXIT_CODES}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PltzError)]
    assert kinds and {kind.exit_code for kind in kinds} <= listed


@pytest.mark.parametrize("group", [(), *sorted({path[:1] for path in LEAVES if len(path) > 1})])
def test_groups_name_each_command_in_a_line(group: tuple[str, ...]) -> None:
    done = ok(CliRunner().invoke(cli, [*group, "--help"], prog_name="pltz", terminal_width=80))
    for name in {path[len(group)] for path in LEAVES if path[: len(group)] == group}:
        [line] = [line for line in done.stdout.splitlines() if re.match(rf"  {name} +[A-Z]", line)]
        assert line.endswith(".") and not line.endswith("...")


def test_the_help_of_pltz_fits_one_screen() -> None:
    assert len(CliRunner().invoke(cli, ["--help"], prog_name="pltz", terminal_width=80).stdout.splitlines()) <= 46


def test_there_are_few_commands_and_options() -> None:
    options = {id(o) for c in (cli, *COMMANDS.values()) for o in c.params if isinstance(o, click.Option)}
    assert len(LEAVES) <= 44 and len(options) + len(OPTIONS) <= 371, (len(LEAVES), len(options))


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from pltz.cli.root import cli; cli(['--help'], standalone_mode=False);"
        "sys.exit(', '.join({'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compress" in done.stdout


@pytest.mark.parametrize("command", COMMANDS.values(), ids=map(" ".join, COMMANDS))
def test_the_line_in_the_list_of_commands_is_a_whole_one(command: click.Command) -> None:
    """Check a limit of 45 characters, where click left half sentences: "with all tags, by..."."""
    assert re.search(r"[\w)>\"]\.$", command.get_short_help_str(45)), command.get_short_help_str(45)
