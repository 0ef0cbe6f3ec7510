"""Prefixes by characters, and the ids that stay for them."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.kv.memory.prefix_match import PrefixMatch, common, cut, ends_of, spelled
from pltz.models.target.target import Target
from tests.examples import examples

TEXT = "Naïve 🤖 robots say: don't!\n\tЖизнь 日本語 — <|x|> 12345 end"


@pytest.mark.parametrize(("remembered", "prompt", "kind", "characters"), [
    ("abc", "abc", "exact", 3), ("abc", "abcd", "extend", 3), ("a" * 10, "a" * 8 + "bb", "partial", 8),
    ("a" * 10, "a" * 8, "partial", 8), ("a" * 10, "a" * 7 + "bbb", "diverge", 0), ("abc", "xbc", "diverge", 0),
])
def test_matches(remembered: str, prompt: str, kind: str, characters: int) -> None:
    assert PrefixMatch.of(remembered, prompt) == PrefixMatch(kind, characters)


def test_ends_say_which_characters_ids_are(target: Target) -> None:
    ids, ends = spelled(target, TEXT)
    assert ids == target.tokenize(TEXT) and ends[-1] == len(TEXT) and (ends == -1).any()
    for n, end in enumerate(ends):
        assert end == -1 or target.decode(ids[: n + 1]) == TEXT[:end]
    assert ends_of(target, ids, TEXT).tolist() == ends.tolist()
    assert ends_of(target, ids, "another text").tolist() == [-1] * len(ids)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_kept_ids_and_the_rest_are_the_prompt(target: Target, data: st.DataObject) -> None:
    """For any spelling of the remembered text: of pieces that are spelled one by one."""
    text = st.text(st.sampled_from("ab e🤖ïЖ\n<th"), max_size=12)
    parts, tail = data.draw(st.lists(text, max_size=4)), data.draw(text)
    remembered = "".join(parts)
    ids = [one for part in parts for one in target.tokenize(part)]
    ends = ends_of(target, ids, remembered)
    prompt = remembered[: data.draw(st.integers(0, len(remembered)))] + tail
    new, new_ends = spelled(target, prompt)
    kept, done = cut(ends, new_ends, common(remembered, prompt))
    assert target.decode([*ids[:kept], *new[done:]]) == prompt
    assert kept == 0 or ends[kept - 1] == new_ends[done - 1]
    assert np.all(ends[:kept] <= common(remembered, prompt))
