"""``pltz live``: keep transcripts of agents that run, over HTTP, in a journal and an archive."""

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path

import click

from pltz.cli import ArchiveCommand, archive_key, archive_place, options, write_text
from pltz.plt_codec import need
from pltz.serving.commands.browse import HOST, TOKEN, configured, run
from pltz.serving.commands.serve import bound, key_of, listen


@click.command(
    cls=ArchiveCommand,
    short_help="Keep transcripts of running agents, over HTTP.",
    examples=["pltz live /var/lib/pltz/live -r /data/cold", "pltz live live --port 0 --json"],
)
@click.argument("journal", metavar="DIR")
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), default=8001, show_default=True, help="Port; 0: a free one."
)
@options.JSON
def live(journal: str, port: int, as_json: bool) -> None:
    """Take transcripts of this machine over HTTP, make entries durable in the journal in DIR, and put sessions that are
    idle for 5 minutes into the archive, until Ctrl-C.

    POST appends lines of JSON to /entries?project=P&session=S[&subpath=X], GET loads them, DELETE deletes them. GET
    /sessions?project=P and /subkeys?project=P&session=S list. Requests have the header `Authorization: Bearer TOKEN`
    with the token in DIR/token, which is made where there is none.
    """
    need("serve", "pltz live", "starlette", "uvicorn")
    from pltz.serving.live.app import app_of
    from pltz.serving.live.store import LiveStore

    place = archive_place()
    with bound(HOST, port) as listening:
        store = LiveStore.open(journal, place, create=False, **archive_key(place))
        token = Path(journal, "token")
        with suppress(FileExistsError), open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(TOKEN))
        key = key_of(str(token))
        assert key is not None
        config = configured(app_of(store, key))
        url = f"http://{HOST}:{listen(listening, config.backlog)}"
        write_text(json.dumps({"url": url, "token": str(token)}) if as_json else f"{url}  (token in {token})")
        run(config, listening)
