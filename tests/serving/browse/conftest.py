"""Fixtures of the tests of commands, which those of the rooms above the core use too."""

from tests.cli.conftest import bundle_at_hand, chats, cold, frozen, put, run, shipped, tiny, trained

__all__ = ["bundle_at_hand", "chats", "cold", "frozen", "put", "run", "shipped", "tiny", "trained"]
