"""Neighbours in base domains: shared prompts are coded after each other, and tell nothing of the sessions below.

Against the model: test_machine.py; crashes: test_crash.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pltz.archive.catalog.chain import LAST, Chains, depth_of
from pltz.archive.errors import LostError
from pltz.archive.format.ids import BASE, TENANT, segment_of
from pltz.archive.format.record import Record
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import Plain, SegmentCodec
from pltz.plt_codec.identity import NONE
from tests.archive.peek import peek, records
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive
from tests.archive.writing.test_neighbours import again, alike, unlike

Ids = np.ndarray[Any, Any]
TOPIC = np.random.default_rng(4).integers(0, 60_000, 300)


def prompt(number: int) -> Ids:
    """Return a prompt of which nine in ten tokens are those of the other prompts."""
    return alike(number)


def talk(number: int) -> Ids:
    """Return a session below a prompt, much like the others and unlike the prompts."""
    return np.concatenate([TOPIC[:150], np.random.default_rng(300 + number).integers(0, 60_000, 20), TOPIC[150:]])


@pytest.fixture(params=["plain", "sealed"])
def archive(request: pytest.FixtureRequest, tower_codec: SegmentCodec) -> TowerArchive:
    """Make an empty archive whose puts look for neighbours."""
    made = TowerArchive.create(
        DirectoryStore(SimDisk()), [tower_codec], key=RAW if request.param == "sealed" else None
    )
    made.neighbours = True
    return made


def put(archive: TowerArchive, name: str, tenant: str, number: int, own: Ids, base: str = "shop") -> int:
    """Put a session below a prompt of a base domain, and return the bytes that it took."""
    [receipt] = archive.put([NewSession(name, [prompt(number), own], tenant, shared=1, base=base)])
    return receipt.size


def neighbours(archive: TowerArchive, name: str, tenant: str) -> list[bytes]:
    """Return the neighbour of each segment of a session."""
    return [item.record.neighbour for item in peek(archive, name, tenant)]


def names(archive: TowerArchive, name: str, tenant: str) -> list[bytes]:
    return [segment for segment, _ in archive.get(name, tenant).segments]


def want(archive: TowerArchive, rows: dict[tuple[str, str], Ids]) -> None:
    """Check that exactly these sessions are there, here and in another process, and that the archive is sound."""
    for reader in (archive, again(archive)):
        assert {(v.tenant, v.name) for v in reader.ls()} == set(rows)
        for (tenant, name), tokens in rows.items():
            assert np.array_equal(reader.get(name, tenant).tokens, tokens)
        report = reader.verify(decode=True)
        assert report.sound and not report.undecoded, report.problems
        assert reader.verify().sound


def test_a_prompt_is_coded_after_another_of_the_same_base(archive: TowerArchive) -> None:
    alone = put(archive, "a", "acme", 0, unlike(0))
    assert put(archive, "b", "beta", 1, unlike(1)) < 0.7 * alone
    assert neighbours(archive, "b", "beta") == [names(archive, "a", "acme")[0], NONE]
    put(archive, "c", "acme", 2, unlike(2), base="other shop")
    assert neighbours(archive, "c", "acme") == [NONE, NONE]
    want(
        archive,
        {
            ("acme", "a"): np.concatenate([prompt(0), unlike(0)]),
            ("beta", "b"): np.concatenate([prompt(1), unlike(1)]),
            ("acme", "c"): np.concatenate([prompt(2), unlike(2)]),
        },
    )


def chain_of_three(archive: TowerArchive) -> dict[tuple[str, str], Ids]:
    """Put "c" after "b", which stands on a prompt that is coded after that of "a"."""
    put(archive, "a", "acme", 0, unlike(0))
    put(archive, "b", "beta", 1, talk(1))
    archive.put([NewSession("c", [talk(2)], "beta")])
    assert neighbours(archive, "b", "beta") == [names(archive, "a", "acme")[0], NONE]
    assert neighbours(archive, "c", "beta") == [names(archive, "b", "beta")[1]]
    return {
        ("acme", "a"): np.concatenate([prompt(0), unlike(0)]),
        ("beta", "b"): np.concatenate([prompt(1), talk(1)]),
        ("beta", "c"): talk(2),
    }


def test_a_session_below_such_a_prompt_serves_others(archive: TowerArchive) -> None:
    rows = chain_of_three(archive)
    want(archive, rows)
    other = again(archive)
    other.neighbours = True
    other.put([NewSession("c", [talk(2), np.arange(9)], "beta")])  # relies on what the other process stored
    want(archive, rows | {("beta", "c"): np.concatenate([talk(2), np.arange(9)])})


def test_the_last_of_three_towers_that_is_lost_loses_the_others(archive: TowerArchive) -> None:
    chain_of_three(archive)
    place = peek(archive, "a", "acme")[0]
    archive.store.disk.seen.names.pop(f"packs/{place.location.pack.hex()}")  # type: ignore[attr-defined]
    report = again(archive).verify()
    assert {v.name for v in report.lost} == {"b", "c"} and not report.sound
    with pytest.raises(LostError):
        again(archive).get("c", "beta")


def test_collect_keeps_all_three_towers_and_frees_them_in_the_end(archive: TowerArchive) -> None:
    rows = chain_of_three(archive)
    archive.forget([archive.version("a", "acme"), archive.version("b", "beta")])
    left = {("beta", "c"): rows["beta", "c"]}
    blind = TowerArchive.open(archive.store, [])  # without key and codecs it cannot code anything anew
    for _ in range(3):
        blind.collect(dead_share=0.01)
    want(archive, left)
    assert archive.stat().segments == 4  # "c", what it was coded after with its prompt, and that of the prompt
    for _ in range(6):
        archive.collect(dead_share=0.01)
    want(archive, left)
    assert archive.stat().segments == 1


def test_a_plan_that_condemns_the_last_tower_is_noticed(
    archive: TowerArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = chain_of_three(archive)
    publisher, collector = archive.parts.writer._publisher, again(archive)
    publish = publisher.put

    def late(packs: Any, new: Any = None) -> None:
        if collector.catalog.listing.epoch == 0:
            collector.forget([collector.version("a", "acme"), collector.version("b", "beta")])
            collector.collect(dead_share=0.01)
        publish(packs, new)

    monkeypatch.setattr(publisher, "put", late)
    archive.put([NewSession("d", [talk(3)], "beta")])
    for _ in range(4):
        collector.collect(dead_share=0.01)
    want(archive, {("beta", "c"): rows["beta", "c"], ("beta", "d"): talk(3)})


def test_prompts_of_a_base_are_chosen_for_other_processes(archive: TowerArchive) -> None:
    put(archive, "a", "acme", 0, unlike(0))
    put(archive, "b", "beta", 1, unlike(1))
    done = archive.cluster()
    assert (done.prompts, done.medoids) == (2, 3)  # the prompt coded alone, and what stands below both
    other = again(archive)
    other.neighbours = True
    put(other, "c", "gamma", 2, unlike(2))
    near = neighbours(archive, "c", "gamma")
    assert near[0] in {names(archive, "a", "acme")[0], names(archive, "b", "beta")[0]} and near[1] == NONE
    rows = {("acme", "a"): (0, 0), ("beta", "b"): (1, 1), ("gamma", "c"): (2, 2)}
    want(archive, {who: np.concatenate([prompt(m), unlike(n)]) for who, (m, n) in rows.items()})


@pytest.mark.usefixtures("trial_budget")
@pytest.mark.parametrize("clustered", [False, True])
def test_the_sessions_of_one_tenant_change_no_size_of_another(
    tower_codec: SegmentCodec, clustered: bool
) -> None:
    """Put the same prompts, with and without a tenant's own sessions below and beside them, then another tenant's."""
    sizes = []
    for private in (False, True):
        archive = TowerArchive.create(DirectoryStore(SimDisk()), [tower_codec], key=RAW)
        archive.neighbours = True
        for number in (0, 1):
            archive.put([NewSession(f"p{number}", [prompt(number)], "acme", shared=1, base="shop")])
        for number in range(8 if private else 0):
            put(archive, f"below{number}", "acme", number % 2, talk(number))
            archive.put([NewSession(f"beside{number}", [talk(10 + number)], "acme")])
        if clustered:
            archive.cluster()
            archive = again(archive)
            archive.neighbours = True
        found = [put(archive, f"b{n}", "beta", n % 3, talk(20 + n)) for n in range(4)]
        found += [r.size for r in archive.put([NewSession(f"c{n}", [talk(n)], "beta") for n in range(3)])]
        found += [put(archive, "other", "beta", 7, talk(30), base="elsewhere")]
        sizes.append(found)
    assert sizes[0] == sizes[1]
    assert min(sizes[0]) < max(sizes[0]) / 3  # the tenant's own sessions, and the prompts, do serve


def test_a_record_coded_after_another_tenants_segment_is_refused(archive: TowerArchive) -> None:
    """Craft what no writer makes: a record of one tenant that names a segment of another."""
    archive.put([NewSession("mine", [alike(0)], "acme"), NewSession("theirs", [unlike(5)], "beta")])
    secret, theirs = archive.version("mine", "acme").leaf, archive.version("theirs", "beta").leaf
    [place] = records(archive, theirs)
    codec, keys = archive.codecs[0], archive.keys
    for kind in (TENANT, BASE):
        [data] = codec.encode([Plain(unlike(6), alike(0)[: codec.reach])])
        own = keys.context(kind, "beta")
        kept = place.context
        context = replace(own, tokenizer=kept.tokenizer, bundle=kept.bundle, contract=kept.contract)
        name = segment_of(keys.segment_digest(context.domain, context.tokenizer, NONE, unlike(6)))
        record = Record(0, NONE, name, len(unlike(6)), data)._replace(neighbour=secret)
        archive.parts.writer.copy([(context, keys.seal(context, record))])
        for reader in (archive, again(archive)):
            with pytest.raises(LostError, match="another tenant"):
                Chains(reader.catalog, reader.codecs).tower(name)


def craft(archive: TowerArchive, tokens: Ids, near: bytes, above: Ids) -> tuple[bytes, Record]:
    """Put a record of tokens coded after ``above``, the tokens of ``near``, whatever a writer would do."""
    codec, keys = archive.codecs[0], archive.keys
    own = keys.context(TENANT, "acme")
    context = replace(own, tokenizer=codec.tokenizer, bundle=codec.bundle_id, contract=codec.contract)
    name = segment_of(keys.segment_digest(context.domain, context.tokenizer, NONE, tokens))
    mark = codec.lane_mark if len(above) else above
    [data] = codec.encode([Plain(tokens, np.concatenate([above, mark]))])
    record = Record(0, NONE, name, len(tokens), data)._replace(neighbour=near)
    archive.parts.writer.copy([(context, keys.seal(context, record))])
    return name, record


def test_a_fourth_neighbour_in_a_row_is_refused(archive: TowerArchive) -> None:
    put(archive, "a", "acme", 0, unlike(0))
    near, above = NONE, np.zeros(0, np.int64)
    for number in range(5):
        near, _ = craft(archive, alike(number), near, above)
        above = alike(number)
        for reader in (archive, again(archive)):
            if number <= LAST:
                assert np.array_equal(Chains(reader.catalog, reader.codecs).tower(near)[0][1], above)
                assert depth_of(reader.catalog, near) == number
            else:
                with pytest.raises(LostError, match="more than 3 neighbours in a row"):
                    Chains(reader.catalog, reader.codecs).tower(near)
                assert depth_of(reader.catalog, near) is None
                assert not reader.verify(decode=True).sound


def test_records_that_name_each_other_are_refused(archive: TowerArchive) -> None:
    put(archive, "a", "acme", 0, unlike(0))
    keys, codec = archive.keys, archive.codecs[0]
    names = [
        segment_of(keys.segment_digest(keys.domain(TENANT, "acme"), codec.tokenizer, NONE, alike(n))) for n in (0, 1)
    ]
    assert craft(archive, alike(0), names[1], alike(1))[0] == names[0]
    assert craft(archive, alike(1), names[0], alike(0))[0] == names[1]
    assert craft(archive, alike(2), names[0], alike(0))
    for reader in (archive, again(archive)):
        for name in names:
            assert depth_of(reader.catalog, name) is None
            with pytest.raises(LostError, match="more than 3 neighbours in a row"):
                Chains(reader.catalog, reader.codecs).tower(name)


def test_of_several_records_that_with_the_fewest_in_a_row_is_kept(archive: TowerArchive) -> None:
    """A session is coded after one of two records of a segment, the one that a reader and a collector must take."""
    archive.neighbours = False
    rows = {"other": unlike(9), "a": alike(0), "b": alike(1), "c": alike(2), "twice": alike(7)}
    rows["user"] = np.concatenate([alike(7), [5]])
    [receipt] = archive.put([NewSession("other", [rows["other"]], "acme")])
    near, above = NONE, np.zeros(0, np.int64)
    for name in ("a", "b", "c", "twice"):
        near, _ = craft(archive, rows[name], near, above)
        above = rows[name]
    assert depth_of(archive.catalog, near) == 3
    assert craft(archive, rows["twice"], receipt.leaf, rows["other"])[0] == near
    assert depth_of(archive.catalog, near) == 1
    user, _ = craft(archive, rows["user"], near, rows["twice"])
    assert [r.new for r in archive.put([NewSession(n, [tokens], "acme") for n, tokens in rows.items()])] == [0] * 6
    for _ in range(3):
        for reader in (archive, again(archive)):
            assert depth_of(reader.catalog, user) == 2
            assert all(np.array_equal(reader.get(n, "acme").tokens, tokens) for n, tokens in rows.items())
            report = reader.verify(decode=True)
            assert report.sound and not report.undecoded, report.problems
        archive.collect(dead_share=0.01)
    [kept] = records(archive, near)
    assert kept.record.neighbour == receipt.leaf
