"""Values are kept within a budget of bytes, those used last."""

from pltz.coding.log.kept import Kept


def test_those_not_used_for_longest_go_first() -> None:
    kept = Kept[bytes](10, len)
    kept.put(b"aa", b"123")
    kept.put(b"bb", b"456")
    assert kept.get(b"aa") == b"123"  # used
    kept.put(b"cc", b"78")
    assert [kept.get(key) for key in (b"aa", b"bb", b"cc")] == [b"123", None, b"78"]


def test_one_value_is_kept_whatever_its_size_and_counts_once() -> None:
    kept = Kept[bytes](10, len)
    kept.put(b"a", b"1" * 50)
    assert kept.get(b"a") == b"1" * 50
    kept.put(b"b", b"2")
    kept.put(b"b", b"2")
    assert kept.get(b"a") is None and kept.get(b"b") == b"2"
    kept.put(b"c", b"3" * 6)
    assert kept.get(b"b") == b"2"
