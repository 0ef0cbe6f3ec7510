"""The keyring: keys come back with the secret alone, follow the changes of others, and stay destroyed."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from pltz.archive.encryption.key_files import LINEAGE, root_id
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.errors import Fenced, KeyMismatch
from pltz.archive.format.ids import BASE, NO_SEGMENT, TENANT
from pltz.archive.format.object_names import key_copies
from pltz.archive.format.record import Record
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from tests.archive.kit import DirectoryStore, Secret, SimDisk

ARCHIVE = b"archive id 16 by"
SECRET, OTHER = Secret(b"sixteen bytes or more", 0), Secret(b"another key of 16 bytes", 0)
SEGMENT = Record(0, NO_SEGMENT, b"segment id", 5, b"bits of a segment")


@pytest.fixture
def store() -> DirectoryStore:
    """Make a store with an archive key."""
    made = DirectoryStore(SimDisk())
    made.make()
    Keyring.create(made, ARCHIVE, SECRET)
    return made


def opened(store: DirectoryStore, secret: Secret = SECRET) -> Keyring:
    return Keyring(store, ARCHIVE, secret)


def test_only_its_secret_opens_it(store: DirectoryStore) -> None:
    opened(store)
    with pytest.raises(KeyMismatch, match="not the key"):
        opened(store, OTHER)
    with pytest.raises(KeyMismatch, match="a key file"):
        opened(store, Secret.passphrase("words"))
    with pytest.raises(UsageError, match="somebody else"):
        Keyring.create(store, ARCHIVE, OTHER)


def test_identities_depend_on_domain_and_content_and_come_back(store: DirectoryStore) -> None:
    keys, again = opened(store), opened(store)
    acme, other = (keys.context(TENANT, name).domain for name in ("acme", "other"))
    assert len({acme, other, keys.domain(BASE, "acme")}) == 3
    digests = [keys.segment_digest(d, b"t" * 16, NO_SEGMENT, np.array(t)) for d in (acme, other) for t in ([1], [2])]
    assert len(set(digests)) == 4 and again.segment_digest(acme, b"t" * 16, NO_SEGMENT, np.array([1])) == digests[0]
    assert again.session_key(acme, "a") == keys.session_key(acme, "a") != keys.session_key(other, "a")
    for made in (partial(keys.domain, BASE), partial(keys.session_key, acme)):
        with pytest.raises(ContentError, match="not valid Unicode"):
            made("\udcff")


def test_a_sealed_segment_opens_in_its_own_place_alone(store: DirectoryStore) -> None:
    keys = opened(store)
    context = keys.context(TENANT, "acme")
    sealed = keys.seal(context, SEGMENT)
    assert SEGMENT.bitstring not in sealed.bitstring and opened(store).bits(context, sealed) == SEGMENT.bitstring
    changes = ({"parent": b"p" * 16}, {"id": b"i" * 16}, {"tokens": 6})
    for moved in (sealed._replace(**change) for change in changes):
        with pytest.raises(CorruptError):
            keys.bits(context, moved)


def test_what_other_keys_governed_is_not_gone(store: DirectoryStore) -> None:
    """Keys of another lineage, or of a later generation, are lost or come back: nothing was destroyed."""
    keys = opened(store)
    context = keys.context(TENANT, "acme")
    known = keys.of(context.domain)
    assert known and known.governs(context.root)
    later = root_id(context.root[:LINEAGE], known.generation + 1)
    other = root_id(bytes(LINEAGE), known.generation)
    for root in (later, other):
        assert not known.governs(root) and not keys.gone(replace(context, root=root), SEGMENT.id or NO_SEGMENT)


def test_a_writer_whose_keys_changed_is_fenced(store: DirectoryStore) -> None:
    writer, eraser = opened(store), opened(store)
    domain = writer.context(TENANT, "acme").domain
    writer.check([domain])
    known = eraser.of(domain)
    assert known and eraser.publish(known.following())
    with pytest.raises(Fenced, match="put again"):
        writer.check([domain])


def test_a_writer_whose_keys_vanished_and_were_made_anew_is_fenced(store: DirectoryStore) -> None:
    """Else it would acknowledge records under keys that only its memory holds."""
    writer = opened(store)
    domain = writer.context(TENANT, "acme").domain
    writer.check([domain])
    for name in key_copies(domain, 0):
        store.delete(name)
    other = opened(store)
    assert other.context(TENANT, "acme").domain == domain
    other.check([domain])
    with pytest.raises(Fenced):
        writer.check([domain])
    writer.refresh()
    sealed = writer.seal(writer.context(TENANT, "acme"), SEGMENT)
    assert opened(store).bits(writer.context(TENANT, "acme"), sealed) == SEGMENT.bitstring


def test_a_second_process_does_not_publish_the_same_generation(store: DirectoryStore) -> None:
    first, second = opened(store), opened(store)
    domain = first.context(TENANT, "acme").domain
    ours, theirs = first.of(domain), second.of(domain)
    assert ours and theirs and first.publish(ours.following())
    assert not second.publish(theirs.following(doomed=frozenset({1})))
