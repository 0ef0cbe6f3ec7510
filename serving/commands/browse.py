"""``pltz browse``: look at an archive in a browser: list, search, read, download."""

import json
import secrets
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from pltz.cli import REDACT, ArchiveCommand, archive_key, archive_place, options, redactor, write_text
from pltz.plt_codec import need
from pltz.serving.commands.serve import bound, listen

if TYPE_CHECKING:
    import socket

    import uvicorn
    from starlette.applications import Starlette

HOST, TOKEN = "127.0.0.1", 24  # bytes of a token


@click.command(
    cls=ArchiveCommand,
    short_help="Browse sessions: list, search, read, download.",
    examples=["pltz browse -r /data/cold", "pltz browse --port 8001 --no-open"],
)
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Port.  [default: a free one]")
@click.option("--no-open", is_flag=True, help="Print the address and start no browser.")
@REDACT
@options.JSON
def browse(port: int, no_open: bool, redact: bool, as_json: bool) -> None:
    """Print an address of this machine alone, open it in a browser, and serve the archive there until Ctrl-C.

    Sessions are listed with those talked in last first, searched as you type, read, and downloaded as Markdown, HTML or
    the file that they were. Nothing in the archive changes. Who has the address can read all of it: it has a token that
    is new each time. --redact marks secrets of a known shape in titles, pages and downloads, and not in names. An index
    of words in your cache folder is brought up to date first, as by `pltz search`.
    """
    need("serve", "pltz browse", "starlette", "uvicorn")
    from pltz.archive import Archive
    from pltz.serving.browse.app import app_of
    from pltz.serving.browse.shelf import Shelf

    marked, place = redactor(redact), archive_place()
    key = archive_key(place)
    cold, other = Archive.open(place, **key), Archive.open(place, **key)
    cold.parts.want_key()
    with bound(HOST, port) as listening:
        token, once = secrets.token_urlsafe(TOKEN), secrets.token_urlsafe(TOKEN)
        config = configured(app_of(Shelf(cold, other, marked), token, once))
        address = f"http://{HOST}:{listen(listening, config.backlog)}"
        url = f"{address}/{token}/"
        write_text(json.dumps({"url": url}) if as_json else f"{url}  (Ctrl-C ends it)")
        if not no_open and not webbrowser.open(f"{address}/open/{once}"):
            click.echo("no browser could be started: open the address in one", err=True)
        run(config, listening)


def configured(app: "Starlette") -> "uvicorn.Config":
    """Return how a local application is served."""
    import uvicorn

    from pltz.serving.server.connection import connection_class

    return uvicorn.Config(
        app,
        http=connection_class(),
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        server_header=False,
    )


def run(config: "uvicorn.Config", listening: "socket.socket") -> None:
    """Serve until a signal ends it."""
    import uvicorn

    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that it ended by, in good order
        uvicorn.Server(config).run(sockets=[listening])
