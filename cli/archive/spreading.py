"""Options of bulk commands for the machines of a Ray cluster: ``--ray [ADDRESS]`` and ``--journal FOLDER``."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pltz.cli.ui.options import Decorator, together
from pltz.cli.ui.process import stdout_apart
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.maintenance.bulk_shards import Spread

HERE = "here"  # --ray without an address


def _address(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return an address. Raises UsageError where it is none."""
    if value is not None and value not in (HERE, "auto", "local") and ":" not in value:
        raise UsageError(
            f"expected an address such as ray://HOST:10001, HOST:6379 or auto, found {value!r}: "
            "put --ray without an address behind DIR"
        )
    return value


@dataclass(frozen=True)
class Spreading:
    """The machines of a bulk command. It is true where ``--ray`` was given."""

    ray: str | None
    journal: str | None

    def __post_init__(self) -> None:
        if self.ray is None and self.journal is not None:
            raise UsageError("--journal needs --ray")

    def __bool__(self) -> bool:
        return self.ray is not None

    @contextmanager
    def over(
        self, identity: bytes, place: str, work: str, *, writes: bool = True, keep: bool = True
    ) -> "Iterator[Spread]":
        """Connect to the cluster and yield the workers with the journal. Another coordinator is refused meanwhile.

        The journal is dropped where the work ends without an error, since all of it is done then.

        Args:
            identity: id of the archive.
            place: where it is.
            work: name of the command.
            writes: whether it changes the archive, so that coordinators of all commands that do exclude each other;
                else those with the same journal do, where there is one.
            keep: whether a journal is kept where none is named.

        Raises ArchiveError where another is at work, UsageError where Ray is missing or no cluster answers.
        """
        from pltz.archive.maintenance import bulk_ray
        from pltz.archive.maintenance.bulk_journal import BulkJournal, journal_folder
        from pltz.archive.maintenance.bulk_lease import BulkLease
        from pltz.archive.maintenance.bulk_shards import Spread
        from pltz.archive.storage.places import open_store
        from pltz.plt_codec.identity import digest

        name = digest(b"pltz bulk work", identity, os.path.abspath(place).encode(), work.encode())
        with ExitStack() as stack:
            stack.enter_context(stdout_apart())
            journal = BulkJournal.at(self.journal or journal_folder(name)) if keep or self.journal else None
            store = open_store(place) if writes else journal.store if journal else None
            lease = stack.enter_context(BulkLease(store, f"{work} on Ray")) if store else None
            ray = stack.enter_context(bulk_ray.cluster(None if self.ray == HERE else self.ray))
            spread = Spread(bulk_ray.RayWorkers(ray), journal, lease.want if lease else lambda: None)
            yield spread
            spread.clear()


# The command takes them as ``spreading``, a `Spreading`.
spread_options: Decorator = together(
    Spreading,
    "spreading",
    click.option(
        "--ray",
        is_flag=False,
        flag_value=HERE,
        is_eager=True,  # before a missing DIR is: that may be why
        callback=_address,
        metavar="[ADDRESS]",
        help="Do the work on a Ray cluster: ray://HOST:PORT, HOST:PORT, auto. Behind DIR and without an address: "
        "RAY_ADDRESS, else all cores of this machine.",
    ),
    click.option(
        "--journal",
        metavar="FOLDER",
        help="Folder or s3:// URL that remembers the finished shards of --ray, so that another run goes on.",
    ),
)
