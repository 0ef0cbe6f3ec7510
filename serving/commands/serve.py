"""``pltz serve``: serve a model over OpenAI's API, with sessions that go cold and come back."""

import ipaddress
import json
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pltz.cli import TENANT, ArchiveCommand, archive_key, archive_place, archive_secret, options, write_text
from pltz.plt_codec import UsageError, need, secret_file

if TYPE_CHECKING:
    from pltz.serving.server.service import Service

LOCK = "serve.lock"
KEY, SHORTEST, MOST = "PLTZ_API_KEY", 16, 4096  # environment variable, characters of a key, bytes of its file
NEW = 256
LAST = 4.0  # seconds that turns have to end after a signal


@click.command(
    cls=ArchiveCommand,
    short_help="Serve a model over OpenAI's API, with sessions that go cold.",
    examples=[
        "pltz serve mini-llama --archive cold",
        "pltz serve ./my-model --archive /data/cold --device cuda --pages q4 --tokens 500000 --host-tokens 2000000",
        "pltz serve ./my-model --archive /data/cold --disk /data/kv --disk-bytes 200000000000",
    ],
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--journal", metavar="DIR", help="Where turns are made durable first.  [default: the archive's folder + .journal]"
)
@TENANT
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--allowed-host", metavar="NAME", multiple=True, help="Another name that clients call this server by; * for any."
)
@click.option(
    "--api-key", metavar="FILE", help=f"File with the key that clients must send.  [default: that in ${KEY}, if any]"
)
@click.option("--insecure", is_flag=True, help="Listen on another address than the loopback without a key.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port; 0 for a free one.",
)
@click.option(
    "--pages", type=click.Choice(["raw", "q8", "q4"]), default="raw", show_default=True, help="Form of KV in the pool."
)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(min=256),
    default=65_536,
    show_default=True,
    help="Room of the pool on the device.",
)
@click.option(
    "--host-tokens",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Room for KV in host memory.",
)
@click.option(
    "--rows", metavar="N", type=click.IntRange(min=1), default=32, show_default=True, help="Turns that run at once."
)
@click.option(
    "--disk", type=click.Path(file_okay=False), metavar="DIR", help="Keep the KV of idle sessions in files here."
)
@click.option(
    "--disk-bytes",
    metavar="N",
    type=click.IntRange(min=1),
    default=20_000_000_000,
    show_default=True,
    help="Room for the files in --disk DIR.",
)
@click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Keep these files in the small form of pltz target calibrate.",
)
@click.option(
    "--max-kl",
    metavar="X",
    type=click.FloatRange(min=0, min_open=True),
    default=0.005,
    show_default=True,
    help="Bits per token that the small form may lose.",
)
@click.option(
    "--max-age",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    default=604_800.0,
    show_default=True,
    help="Seconds after which KV that nobody used goes, from files too.",
)
@click.option(
    "--max-model-len",
    metavar="N",
    type=click.IntRange(min=1),
    help="Tokens of a request and its reply, at most.  [default: those of the model, as far as the pool has room]",
)
@click.option("--served-model-name", metavar="NAME", help="What clients call the model.  [default: its folder's name]")
@click.option(
    "--new",
    metavar="N",
    type=click.IntRange(min=1),
    default=NEW,
    show_default=True,
    help="New tokens at most, where a request does not say. The pool keeps room for all of them.",
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds without a turn after which a session goes cold.",
)
@click.option("--dtype", metavar="TYPE", help="float32, bfloat16 or float16.  [default: that of the weights]")
@options.BUNDLE
@options.DEVICE
@options.JSON
def serve(
    model: str,
    journal: str | None,
    tenant: str,
    host: str,
    allowed_host: tuple[str, ...],
    api_key: str | None,
    insecure: bool,
    port: int,
    pages: str,
    tokens: int,
    host_tokens: int,
    rows: int,
    disk: str | None,
    disk_bytes: int,
    calibration: str | None,
    max_kl: float,
    max_age: float,
    max_model_len: int | None,
    served_model_name: str | None,
    new: int,
    idle: float,
    dtype: str | None,
    bundle: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Serve MODEL over OpenAI's completions and chat completions, on one machine. For fleets take vLLM.

    A request that names a session (field "session", or header X-Session-ID) goes on where the session is. Sessions idle
    for --idle seconds go to the archive, their KV to --disk DIR, and both come back when asked for. A turn is answered
    to its end when its tokens are durable in the journal. Requests must name this server as it is known (--host,
    --allowed-host), and have its key where it has one; another --host than the loopback needs one. There is no TLS: see
    docs/serve.md.
    """
    need("serve", "pltz serve", "starlette", "uvicorn", "prometheus_client")
    from pltz.archive import Archive
    from pltz.kv.kv_forms import kv_forms
    from pltz.kv.port.bound import Bound
    from pltz.kv.store.store import EXACT, KVStore
    from pltz.models import Target
    from pltz.serving.eviction.hook import EvictionHook, HookSettings
    from pltz.serving.eviction.journal.lock import FileLocks
    from pltz.serving.server.service import Service

    place = archive_place()
    if journal is None and "://" in place:
        raise UsageError("expected --journal DIR, a folder of this machine, beside an archive that is elsewhere")
    if calibration is not None and (disk is None or pages != "raw"):
        raise UsageError("--calibration is of the files in --disk DIR, which are made of --pages raw")
    key = key_of(api_key)
    if key is None and not insecure and not _is_loopback(host):
        raise UsageError(
            f"all that reach {host} could use this server: name a key with --api-key FILE or ${KEY}, or say --insecure"
        )
    folder = Path(journal or f"{place.rstrip('/')}.journal")
    archive = Archive.open(place, bundle=bundle, **archive_key(place))
    archive.parts.want_key()
    with bound(host, port) as address:  # before the model is loaded
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLocks(folder).take(LOCK)
        if lock is None:
            raise UsageError(f"another server uses the journal {folder}: name another one with --journal")
        # What the journal still holds goes to the archive before the model is loaded.
        _empty(folder, place, bundle)
        click.echo(f"loading {model}", err=True)
        target = Target.load(model, device=device, dtype=dtype)
        hook = EvictionHook.open(
            folder,
            place,
            tokenizer=target.tokenizer_json,
            target=target.fingerprint,
            bundle=bundle,
            key=archive_secret(place),
            settings=HookSettings(flush_seconds=0.01),
        )
        form = None if calibration is None else kv_forms(target, calibration, max_kl=max_kl)["predictive"]
        store = KVStore.open(target, tokens, host_tokens, disk_bytes if disk else 0, kind=pages, folder=disk, form=form)
        name = served_model_name or os.path.basename(model.rstrip("/")) or model
        service = Service(
            target,
            store,
            hook,
            archive,
            name=name,
            tenant=tenant,
            idle=idle,
            rows=rows,
            new=new,
            max_age=max_age,
            positions=max_model_len,
            bound=EXACT if form is None else Bound.of(max_kl),
        )
        names = [f"[{host}]" if ":" in host else host, *allowed_host]
        _run(service, address, names, key, as_json)
        lock.free()


def key_of(file: str | None) -> str | None:
    """Return the key that clients must send, None for none. Raises UsageError."""
    found = os.environ.get(KEY)
    if file is not None:
        try:
            found = secret_file(file, MOST).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"cannot read the key in {file}: {exc}") from exc
    if found is not None and not re.fullmatch(f"[!-~]{{{SHORTEST},}}", found):
        raise UsageError(f"expected a key of at least {SHORTEST} ASCII characters without spaces")
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _empty(journal: Path, place: str, bundle: str | None) -> None:
    """Put the rest of a journal into the archive, so that no session looks older. Raises UsageError where it cannot."""
    from pltz.serving.eviction.worker import drain

    done = drain(journal, place, bundle=bundle, key=archive_secret(place))
    if done.busy or done.left or done.lost:
        raise UsageError(f"the journal {journal} cannot be emptied ({done.failure or 'see pltz hook status'})")
    if done.rejected:
        click.echo(f"{done.rejected} turns of the journal do not fit the archive: see pltz hook status", err=True)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket with this address. Raises UsageError where it cannot have it."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as exc:
        found.close()
        raise _no_address(host, port, exc) from exc
    return found


def listen(listening: socket.socket, backlog: int) -> int:
    """Listen, so that whoever is told may connect at once, and return the port. Raises UsageError."""
    host, port = listening.getsockname()[:2]
    try:
        listening.listen(backlog)
    except OSError as exc:  # another process had bound it as well, and listens
        raise _no_address(host, port, exc) from exc
    return port  # type: ignore[no-any-return]


def _no_address(host: str, port: int, error: OSError) -> UsageError:
    return UsageError(f"cannot listen on {host}, port {port}: {error.strerror}: choose another address or --port")


def _run(service: "Service", listening: socket.socket, names: list[str], key: str | None, as_json: bool) -> None:
    """Listen, say where, and serve until a signal ends it. Turns that are too long then end by an error."""
    import asyncio

    import uvicorn

    from pltz.serving.server.app import app_of
    from pltz.serving.server.connection import MOST, SECONDS, connection_class
    from pltz.serving.server.service import WAITING

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            leave = asyncio.create_task(service.leave(LAST))
            await super().shutdown(sockets)
            leave.cancel()

    config = uvicorn.Config(
        app_of(service, names, key),
        http=connection_class(),
        ws="none",
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST + WAITING,
        timeout_keep_alive=int(SECONDS),
        timeout_graceful_shutdown=int(LAST) + 4,
        server_header=False,
    )
    url = f"http://{names[0]}:{listen(listening, config.backlog)}"
    write_text(json.dumps({"url": url, "model": service.name}) if as_json else f"serving {service.name} at {url}")
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that it ended by, in good order
        Server(config).run(sockets=[listening])
