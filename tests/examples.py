"""Scale the random examples of a test: a third in CI, where they are the same each time, and all when exploring."""

from hypothesis import settings

EXPLORE, SHARE = "explore", 3  # the profile that takes all; the others take one of SHARE


def examples(most: int) -> int:
    """Return how many of ``most`` examples the profile takes that is loaded."""
    return most if settings.get_current_profile_name() == EXPLORE else -(-most // SHARE)
