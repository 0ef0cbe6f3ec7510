"""Rows for a calibration."""

from __future__ import annotations

import pytest

from pltz.coding.partners import DEFAULT_TARGET
from pltz.kv.calibrate.measure import sessions_to_rows
from pltz.models.session.session import Session
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ContentError


def test_a_session_that_is_none_for_the_target_is_named() -> None:
    """A folder of several files often has one that holds no chats."""
    chats = [Session("text", b"one two three four " * 30)] * 3
    chats.insert(2, Session("chat", {"rows": 3}))
    with pytest.raises(ContentError, match=r"^session 3 of all given is none for this target: expected"):
        sessions_to_rows(Target.load(DEFAULT_TARGET), chats, 100, 64)
