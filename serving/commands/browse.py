"""``pltz browse``: look at an archive in a browser: list, search, read, download."""

import json
import secrets
import webbrowser
from contextlib import suppress

import click

from pltz.cli import ArchiveCommand, archive_key, archive_place, options, write_text
from pltz.plt_codec import need
from pltz.serving.commands.serve import bound, listen

HOST, TOKEN = "127.0.0.1", 24  # bytes of a token


@click.command(
    cls=ArchiveCommand,
    short_help="Browse sessions: list, search, read, download.",
    examples=["pltz browse -r /data/cold", "pltz browse --port 8001 --no-open"],
)
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Port.  [default: a free one]"
)
@click.option("--no-open", is_flag=True, help="Print the address and start no browser.")
@options.JSON
def browse(port: int, no_open: bool, as_json: bool) -> None:
    """Print an address of this machine alone, open it in a browser, and serve the archive there until Ctrl-C.

    Sessions are listed with those talked in last first, searched as you type, read, and downloaded as Markdown, HTML or
    the file that they were. Nothing in the archive changes. Who has the address can read all of it: it has a token that
    is new each time. An index of words in your cache folder is brought up to date first, as by `pltz search`.
    """
    need("serve", "pltz browse", "starlette", "uvicorn")
    import uvicorn

    from pltz.archive import Archive
    from pltz.serving.browse.app import app_of
    from pltz.serving.browse.shelf import Shelf
    from pltz.serving.server.connection import connection_class

    place = archive_place()
    key = archive_key(place)
    cold, other = Archive.open(place, **key), Archive.open(place, **key)
    cold.parts.want_key()
    with bound(HOST, port) as listening:
        token, once = secrets.token_urlsafe(TOKEN), secrets.token_urlsafe(TOKEN)
        config = uvicorn.Config(
            app_of(Shelf(cold, other), token, once),
            http=connection_class(),
            ws="none",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        address = f"http://{HOST}:{listen(listening, config.backlog)}"
        url = f"{address}/{token}/"
        write_text(json.dumps({"url": url}) if as_json else f"{url}  (Ctrl-C ends it)")
        if not no_open and not webbrowser.open(f"{address}/open/{once}"):
            click.echo("no browser could be started: open the address in one", err=True)
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that it ended by, in good order
            uvicorn.Server(config).run(sockets=[listening])
