"""``pltz llama``: move sessions of llama.cpp's llama-server to an archive and back, as token ids.

See archive/engines/llama_server.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted, size
from pltz.cli.archive.shared import TENANT, VERSION
from pltz.cli.ui.groups import Command, Group
from pltz.cli.ui.key_options import key_options, secret
from pltz.cli.ui.options import BUNDLE, JSON, THREADS, Decorator, nonempty
from pltz.cli.ui.output import write_text
from pltz.cli.ui.table import pairs
from pltz.plt_codec.errors import ContentError, FormatError, UsageError

if TYPE_CHECKING:
    from pltz.archive.engines.llama_server import LlamaServer
    from pltz.archive.format.ids import Tokens
    from pltz.archive.token_archive import Put, TokenArchive

URL: Decorator = click.argument("url", metavar="URL")
NAME: Decorator = click.argument("name", type=nonempty, metavar="NAME")
TOKENIZER: Decorator = click.option(
    "--tokenizer", metavar="FILE", required=True, help="tokenizer.json of the model that is served."
)
MODEL: Decorator = click.option(
    "--model", metavar="GGUF", help="The file that is served.  [default: where the server says it is]"
)
MADE_BY: Decorator = click.option(
    "--model",
    metavar="GGUF",
    help="The model that made these slots; a thaw under other weights is refused.  [default: not known]",
)
ADAPTER: Decorator = click.option(
    "--adapter",
    metavar="FILE:SCALE",
    help="LoRA adapters at work then, as style.gguf:0.5, separated by commas.  [default: none]",
)
API_KEY: Decorator = click.option(
    "--api-key",
    metavar="KEY",
    envvar="PLTZ_LLAMA_API_KEY",
    show_envvar=True,
    help="What the server was started with.",
)


def archive_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that open the archive.

    They are ``place``, ``tokenizer``, ``tenant``, ``bundle``, ``threads`` and those of the key.
    """
    place = click.option("--archive", "place", metavar="DIR", required=True, help="The archive.")
    for option in (key_options, THREADS, BUNDLE, TENANT, TOKENIZER, place):
        command = option(command)
    return command


@click.group(cls=Group, short_help="Freeze and thaw sessions of llama.cpp's llama-server.")
def llama() -> None:
    """Sessions of llama.cpp's llama-server: to an archive and back, by their token ids, over its HTTP API.

    URL is that of a running server, such as http://127.0.0.1:8080. From Python: docs/llama-server.md.
    """


@llama.command(
    cls=Command,
    short_help="Put what a slot of a server holds into an archive.",
    examples=[
        "pltz llama freeze http://127.0.0.1:8080 chat-7 --slot 0 --slots /tmp/slots --archive /data/cold --tokenizer tokenizer.json",
    ],
)
@URL
@NAME
@click.option("--slot", type=click.IntRange(min=0), required=True, metavar="N", help="Slot that holds it.")
@click.option(
    "--slots", metavar="DIR", required=True, help="The server's --slot-save-path, as seen from here."
)
@archive_options
@MODEL
@API_KEY
@JSON
def freeze(
    url: str,
    name: str,
    slot: int,
    slots: str,
    place: str,
    tokenizer: str,
    tenant: str,
    bundle: str | None,
    threads: int | None,
    model: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Put what a slot holds into an archive, as session NAME.

    The server saves the slot, its token ids are read, the file is removed; the slot stays as it is. The token sampled last is not in a slot
    yet. Weights and LoRA adapters that are served now are kept with it, and asked for when it is thawed. Where the server's model file is not
    on this machine, name it (--model): else the weights are not known, and a thaw needs --any-target.
    """
    from pltz.archive.token_archive import target_of

    server = _server(url, model, api_key)
    cold = _open(place, tokenizer, bundle, threads)
    ids = server.slot_ids(slot, slots)
    _report([_put(cold, tokenizer, name, tenant, ids, target_of(server.target, server.adapter))], [], as_json)


@llama.command(
    cls=Command,
    short_help="Bring a session back into a slot of a server.",
    examples=[
        "pltz llama thaw http://127.0.0.1:8080 chat-7 --slot 0 --archive /data/cold --tokenizer tokenizer.json"
    ],
)
@URL
@NAME
@click.option(
    "--slot",
    type=click.IntRange(min=0),
    metavar="N",
    help="Slot to fill; one that the server does not have is refused.  [default: the server's choice]",
)
@click.option(
    "--any-target",
    is_flag=True,
    help="Whatever weights and adapters are served; needed where those of the session are not known.",
)
@archive_options
@VERSION
@MODEL
@API_KEY
@JSON
def thaw(
    url: str,
    name: str,
    slot: int | None,
    any_target: bool,
    place: str,
    tokenizer: str,
    tenant: str,
    bundle: str | None,
    threads: int | None,
    number: int | None,
    model: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Bring session NAME back into a slot: one prefill of its ids, nothing sampled. The next request that begins with them finds them hot.

    Weights and adapters other than those it was frozen under are refused, and so is a session of which they are not known.
    """
    server = _server(url, model, api_key)
    found = _open(place, tokenizer, bundle, threads).get(name, tenant, number)
    hot = server.thaw(
        found.ids, slot=-1 if slot is None else slot, frozen_for=found.target, any_target=any_target
    )
    report = {"slot": hot.slot, "tokens": hot.tokens, "cached": hot.cached}
    times = {"prefill_ms": round(hot.prefill_ms, 1), "total_ms": round(hot.total_ms, 1)}
    if as_json:
        write_text(json.dumps(report | times))
    else:
        write_text(
            f"slot {hot.slot}: {counted(hot.tokens, 'token')} hot, {hot.cached:,} of them before; prefill {hot.prefill_ms:,.0f} ms"
        )


@llama.command(
    "import",
    cls=Command,
    short_help="Put the sessions in slot files into an archive.",
    examples=[
        "pltz llama import chat-7.bin chat-8.bin --model model.gguf --archive /data/cold --tokenizer tokenizer.json"
    ],
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@archive_options
@MADE_BY
@ADAPTER
@JSON
def import_(
    files: tuple[str, ...],
    place: str,
    tokenizer: str,
    tenant: str,
    bundle: str | None,
    threads: int | None,
    model: str | None,
    adapter: str | None,
    as_json: bool,
) -> None:
    """Put the sessions in slot files of llama-server (its --slot-save-path) into an archive, each under the name of its file without the ending.

    Only their token ids are read, and nothing is changed. A slot file does not say which weights it is of: name them (--model), and a thaw
    under others is refused. Without --model they are not known, and a thaw is refused unless it says --any-target. A file that cannot be read is reported and the others go on; the exit code is then 3 or 5.
    """
    from pltz.archive.engines.llama_server import fingerprint_gguf
    from pltz.archive.engines.llama_slots import read_slot_ids
    from pltz.archive.token_archive import target_of

    if adapter is not None and (model is None or not adapter):
        raise UsageError("expected --adapter FILE:SCALE beside --model: a session belongs to weights first")
    target = target_of(fingerprint_gguf(model), adapter) if model is not None else None
    cold = _open(place, tokenizer, bundle, threads)
    puts: list[Put] = []
    failures: list[tuple[str, FormatError | ContentError]] = []
    for file in files:
        try:
            puts.append(_put(cold, tokenizer, Path(file).stem, tenant, read_slot_ids(file), target))
        except (FormatError, ContentError) as exc:
            failures.append((file, exc))
    _report(puts, [(file, str(exc)) for file, exc in failures], as_json)
    if failures:
        click.get_current_context().exit(failures[0][1].exit_code)


def _server(url: str, model: str | None, api_key: str | None) -> "LlamaServer":
    from pltz.archive.engines.llama_server import LlamaServer

    return LlamaServer(url, model=model, api_key=api_key)


def _open(place: str, tokenizer: str, bundle: str | None, threads: int | None) -> "TokenArchive":
    from pltz.archive.token_archive import TokenArchive

    return TokenArchive.open(place, [_read(tokenizer)], bundle, key=secret(), threads=threads)


def _put(
    cold: "TokenArchive", tokenizer: str, name: str, tenant: str, ids: "Tokens", target: bytes | None
) -> "Put":
    from pltz.archive.token_archive import TokenItem

    item = TokenItem(name, ids, tenant, cold.add(_read(tokenizer)), target=target)
    return cold.put([item])[0]


def _read(tokenizer: str) -> bytes:
    try:
        return Path(tokenizer).read_bytes()
    except OSError as exc:
        raise UsageError(f"cannot read {tokenizer}: {exc.strerror or exc}") from exc


def _report(puts: "list[Put]", failures: list[tuple[str, str]], as_json: bool) -> None:
    frozen = [
        {
            "name": p.item.name,
            "tokens": len(p.item.ids),
            "bytes": p.size,
            "unchanged": p.unchanged,
            "target": _target(p),
        }
        for p in puts
    ]
    if as_json:
        write_text(json.dumps({"frozen": frozen, "failed": [{"file": f, "error": e} for f, e in failures]}))
    elif puts:
        write_text(pairs([(p.item.name, _line(p)) for p in puts]))
    for file, error in failures:
        click.echo(f"error: {error if file in error else f'{file}: {error}'}", err=True)


def _line(put: "Put") -> str:
    tokens = counted(len(put.item.ids), "token")
    stored = f"{tokens}, in the archive already" if put.unchanged else f"{tokens} in {size(put.size)}"
    return stored if _target(put) else f"{stored}; weights not known: a thaw needs --any-target"


def _target(put: "Put") -> str | None:
    """Return the weights and adapter that the session belongs to, as hex, or None where they are not known."""
    target = put.item.target or b""
    return target.hex() if any(target) else None
