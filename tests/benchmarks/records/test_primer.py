"""The primer holds lines of several owners, of closed agents short ones, and nothing of one's own."""

import re

from pltz.benchmarks.records import primer
from pltz.plt_codec import ppmd

LONG = b"a line of a prompt that is longer than what is taken of agents whose prompts are their vendors' own, " * 2


def test_lines_of_two_owners_are_chosen_and_none_of_ones_own() -> None:
    both = b"run the tests again\n%s\nmail me@example.org now\nlook into /home/me/it\ntell the octopus-team so" % LONG
    logs = [("codex/octopus-team+x/1", "codex", b"open prompt: " + LONG + b"\n" + both), ("a/me+y/1", "a", both)]
    said = [b"run the tests again", b"tell the octopus-team so"]
    assert primer.chosen([logs[1], ("a/you+z/1", "a", both)]) == said
    assert primer.chosen(logs) == [b"run the tests again", LONG] and primer.chosen([logs[0], logs[0]]) == []


def test_the_primer_that_ships_names_nobody() -> None:
    lines = ppmd.primer().split(b"\n")
    assert len(lines) > 1000 and not [line for line in lines if primer.PRIVATE.search(line)]
    assert not re.search(rb"[\w.+-]+@[\w-]+\.\w|[Ss]igned-off-by|Copyright", ppmd.primer())
