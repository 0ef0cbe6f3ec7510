"""Encryption: nothing is readable on the disk, wrong keys and swapped records are refused, and keys come back.

For erasing see test_erase.py.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import Chains
from pltz.archive.encryption import keys
from pltz.archive.encryption.box import KEY, seal, unseal
from pltz.archive.encryption.domain_keys import DomainKeys
from pltz.archive.encryption.key_files import KeyFile
from pltz.archive.errors import LostError, NotFound
from pltz.archive.format.ids import NO_SEGMENT, TENANT, domain_id, segment_digest, segment_of
from pltz.archive.format.manifest import NamedPack
from pltz.archive.format.pack import Builder, Damage, Pack, name_in
from pltz.archive.format.record import Context, Record, clear_context
from pltz.archive.storage.store import Store
from pltz.coding.codecs.codec import Plain
from pltz.plt_codec.errors import CorruptError, FormatError, UsageError, VersionError
from tests.archive.kit import DirectoryStore, NewSession, Secret, SegmentCodec, SimDisk, TowerArchive, create
from tests.archive.sealed import RAW, chat, reopen, tokens
from tests.examples import examples
from tests.files import key_file

# Boxes


@given(st.binary(max_size=100), st.lists(st.binary(max_size=20), max_size=4), st.data())
def test_a_box_opens_as_it_was_or_not_at_all(plain: bytes, about: list[bytes], data: st.DataObject) -> None:
    box = seal(b"k" * KEY, plain, about)
    assert len(box) == len(plain) + 16 and unseal(b"k" * KEY, box, about, "it") == plain
    bit, changed = data.draw(st.integers(0, 8 * len(box) - 1)), bytearray(box)
    changed[bit // 8] ^= 1 << bit % 8
    for key, body, around in (
        (b"k" * KEY, bytes(changed), about), (b"x" * KEY, box, about), (b"k" * KEY, box, [*about, b"more"]),
        (b"k" * KEY, box[:-1], about),
    ):
        with pytest.raises(CorruptError, match="does not open"):
            unseal(key, body, around, "it")


# Sealed archives


def test_what_was_put_without_encryption_into_a_sealed_archive_is_refused(
    sealed: TowerArchive, disk: SimDisk, codec: SegmentCodec
) -> None:
    sealed.put([chat("a", [1, 2])])
    clear = dataclasses.replace(
        clear_context(TENANT, "acme"), tokenizer=codec.tokenizer, bundle=codec.bundle_id, method=codec.method
    )
    row, [bits] = np.arange(5), codec.encode([Plain(np.arange(5), np.zeros(0, np.int64))])
    leaf = segment_of(segment_digest(clear.domain, clear.tokenizer, NO_SEGMENT, row))
    record = Record(0, id=leaf, tokens=5, bitstring=bits, name="planted", moment=7 << 20, time=7)
    sealed.parts.writer.publisher.put([(clear, record)])
    archive = reopen(disk)
    assert [v.name for v in archive.ls()] == ["a"]
    assert ["without encryption" in p.what for p in archive.catalog.problems] == [True]
    [answer] = Chains(archive.catalog, archive.codecs).answers([leaf])
    assert isinstance(answer, LostError) and "without encryption" in str(answer)


def test_no_name_label_or_content_is_readable_in_files_or_file_names(tmp_path: Path) -> None:
    from pltz.coding.codecs.codec import BytesCodec

    secret, words = tmp_path / "key", ["the-name", "the-tenant", "the-label", "the-prompt", "the-answer"]
    key_file(secret)
    archive = TowerArchive.create(tmp_path / "cold", [BytesCodec()], key=Secret.file(secret))
    name, tenant, label, prompt, answer = words
    text = [np.frombuffer(t.encode(), np.uint8) for t in (prompt, answer)]
    archive.put([NewSession(name, text, tenant, shared=1, base="the-base", tags={label: label})])
    archive.write_index()
    plain_domain = domain_id(TENANT, tenant)
    for path in (tmp_path / "cold").rglob("*"):
        for word in [*words, "the-base"]:
            assert word not in str(path.name)
            assert not path.is_file() or word.encode() not in path.read_bytes(), path
        if path.is_file():
            assert plain_domain not in path.read_bytes() and bytes(range(32)) not in path.read_bytes()
        assert plain_domain.hex() not in path.name
    clear = TowerArchive.create(tmp_path / "clear", [BytesCodec()])
    clear.put([NewSession(name, text, tenant, shared=1, tags={label: label})])
    raw = b"".join(p.read_bytes() for p in (tmp_path / "clear" / "packs").iterdir())
    assert all(word.encode() in raw for word in words)  # the search above can find


def test_secrets_by_passphrase_file_and_command(tmp_path: Path, codec: SegmentCodec) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"0123456789abcdef")
    with pytest.raises(UsageError, match=f"chmod 600 {file}, .* --key-command 'cat FILE'"):
        Secret.file(file)
    file.chmod(0o600)
    for number, secret in enumerate((Secret.passphrase("words"), Secret.file(file), Secret.command(f"cat {file}"))):
        place = tmp_path / str(number)
        TowerArchive.create(place, [codec], key=secret).put([chat("a", [number])])
        assert tokens(TowerArchive.open(place, [codec], key=secret), "a") == [number]
        assert "0123" not in repr(secret) and "words" not in repr(secret)
    file.write_bytes(b"short")
    for path in (file, tmp_path / "none"):
        with pytest.raises(UsageError):
            Secret.file(path)
    with pytest.raises(UsageError):
        Secret.command("false")
    with pytest.raises(UsageError):
        Secret.passphrase("")


def test_no_key_is_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match=r"plain file.* --key-command 'cat FILE'"):
        Secret.file(tmp_path / "pipe")
    with pytest.raises(UsageError, match="over 1048576 bytes"):
        Secret.command("exec cat /dev/zero")
    monkeypatch.setattr(keys, "COMMAND_SECONDS", 0)
    for line in (f"exec cat <> {tmp_path / 'pipe'}", "exec sleep 60 >&-"):
        with pytest.raises(UsageError, match="does not end within 0 s"):
            Secret.command(line)


Rows = list[tuple[Context, Record]]


def rewritten(disk: SimDisk, change: Callable[[Rows], Rows]) -> SimDisk:
    """A disk whose only pack was written again by someone who knows the format, records changed."""
    path = next(p for p in disk.seen.files() if p.startswith("packs/"))
    pack = Pack.of(disk.seen.files()[path])
    rows = [(pack.head.contexts[i[1].context], i[1]) for i in pack.scan() if not isinstance(i, Damage)]
    builder = Builder(0, b"f" * 8, pack.head.archive)
    for context, record in change(rows):
        builder.add(record._replace(context=builder.context(context)))
    data, state = builder.finish(), disk.seen.copy()
    for old in [p for p in state.names if p.startswith(("packs/", "parity/", "index/"))]:
        if len(old) > 30:
            del state.names[old]
    name = name_in(data)
    state.data[9999] = data
    state.names[f"packs/{name.hex()}"] = 9999
    left = SimDisk(state, seed=3)
    catalog = Catalog(DirectoryStore(left))
    catalog.refresh()
    row = NamedPack(len(data), catalog.listing.entries_of(name, len(data)))
    catalog.listing.publish(lambda manifest: dataclasses.replace(manifest, packs={name: row}))
    return left


def swapped(field: str) -> Callable[[Rows], Rows]:
    """The last two records, a field of each in the other."""

    def run(rows: Rows) -> Rows:
        *first, (c, a), (d, b) = rows
        x, y = getattr(a, field), getattr(b, field)
        return [*first, (c, a._replace(**{field: y})), (d, b._replace(**{field: x}))]

    return run


def test_records_moved_or_changed_by_one_who_knows_the_format_are_refused(sealed: TowerArchive, disk: SimDisk) -> None:
    sealed.put([chat("a", [1, 2, 3]), chat("b", [4, 5, 6])])
    same = reopen(rewritten(disk, lambda rows: rows))
    assert tokens(same, "a") == [1, 2, 3]  # a pack written again is no damage
    for field in ("bitstring", "veil", "id"):
        archive = reopen(rewritten(disk, swapped(field)))
        assert not archive.verify(decode=True).sound
        for name in "ab":
            with pytest.raises((CorruptError, LostError, NotFound)):
                archive.get(name, "acme")

    def renumbered(rows: Rows) -> Rows:
        return [*rows[:-1], (rows[-1][0], rows[-1][1]._replace(moment=7))]

    with pytest.raises(CorruptError, match="does not open"):
        reopen(rewritten(disk, renumbered)).get("b", "acme")


# Parsers and limits


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_the_parsers_take_anything(data: bytes) -> None:
    from pltz.archive.encryption.key_files import PERSON
    from pltz.plt_codec.identity import digest

    with pytest.raises(FormatError):
        KeyFile.decode(data)
    for whole in (data, b"PLTk" + data, b"PLTk\1" + data):
        try:
            KeyFile.decode(whole + digest(PERSON, whole))
        except FormatError:
            continue
    try:
        DomainKeys.decode(b"d" * 16, 0, data)
    except FormatError:
        return


def test_a_key_file_that_is_newer_is_refused() -> None:
    data = bytearray(KeyFile(bytes(16), 0, b"box").encode()[:-16])
    data[4] = 9
    from pltz.archive.encryption.key_files import PERSON
    from pltz.plt_codec.identity import digest

    with pytest.raises(VersionError, match="newer pltz"):
        KeyFile.decode(bytes(data) + digest(PERSON, bytes(data)))


def test_bytes_a_session_costs_sealed() -> None:
    sizes = []
    for key in (None, RAW):
        disk = SimDisk()
        archive = create(disk, key=key)
        archive.put([chat(f"s{n}", [n, n + 1]) for n in range(1000)])
        sizes.append(archive.stat().pack_bytes)
    print(f"sealed: {(sizes[1] - sizes[0]) / 1000:.2f} bytes per session more")
    assert sizes[1] - sizes[0] <= 42 * 1000


def test_sealed_and_erased_over_each_store(store: Store, codec: SegmentCodec) -> None:
    archive = TowerArchive.create(store, [codec], key=RAW)
    archive.put([chat("a", [1, 2]), chat("b", [1, 2], [3])])
    keys = set(store.list("keys"))
    assert archive.erase("acme", "b").segments == 1
    again = TowerArchive.open(store, [codec], key=RAW)
    assert tokens(again, "a") == [1, 2] and [v.name for v in again.ls()] == ["a"]
    assert len(set(store.list("keys")) & keys) == 4  # the archive's and the base domain's, not the tenant's
    assert again.verify(decode=True).sound
    with pytest.raises(UsageError, match="already"):
        TowerArchive.create(store, [codec], key=RAW)


def test_records_under_keys_made_since_the_last_refresh_are_read(sealed: TowerArchive, disk: SimDisk) -> None:
    """A reader that lists packs again meets new tenants, and one that was erased and put again."""
    sealed.put([chat("a", [1]), chat("b", [2], tenant="blue")])
    assert len(list(sealed.ls())) == 2
    erased, other = sealed.version("a", "acme").leaf, reopen(disk)
    other.erase("acme")
    other.put([chat("a", [3]), chat("c", [4], tenant="cyan")])
    sealed.catalog.listing.read()
    there = [v for v in sealed.catalog.lookup.all_versions() if v.leaf != erased]
    found = {(v.tenant, v.name): sealed.tower(v).tokens[30:].tolist() for v in there}
    assert found == {("acme", "a"): [3], ("blue", "b"): [2], ("cyan", "c"): [4]} and sealed.problems == []
