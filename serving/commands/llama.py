"""``pltz llama``: move sessions of llama.cpp's llama-server to an archive and back, as token ids.

See serving/engines/llama_server.py.
"""

import json
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pltz.archive import ArchiveError, counted, size
from pltz.cli import (
    BUNDLE,
    JSON,
    TENANT,
    THREADS,
    VERSION,
    ArchiveCommand,
    Decorator,
    OrderedGroup,
    archive_key,
    archive_place,
    archive_secret,
    nonempty,
    pairs,
    size as bytes_of,
    together,
    write_text,
)
from pltz.plt_codec import MAX_TOKENIZER, ContentError, FormatError, ModelError, UsageError, named_file

if TYPE_CHECKING:
    from pltz.archive import Archive, PutReceipt, VersionName
    from pltz.serving.engines.llama_server import LlamaServer

SETTLE = 1.0  # seconds between looks at a worker that archives the last sessions

URL: Decorator = click.argument("url", metavar="URL")
NAME: Decorator = click.argument("name", type=nonempty, metavar="NAME")
TOKENIZER: Decorator = click.option(
    "--tokenizer", metavar="FILE", required=True, help="tokenizer.json of the served model."
)
MODEL: Decorator = click.option(
    "--model", metavar="GGUF", help="The served model file.  [default: the path that the server reports]"
)
MADE_BY: Decorator = click.option(
    "--model",
    metavar="GGUF",
    help="The model that made these slots. A thaw under other weights is refused.  [default: unknown]",
)
ADAPTER: Decorator = click.option(
    "--adapter",
    metavar="FILE:SCALE",
    help="LoRA adapters of these slots, such as style.gguf:0.5, separated by commas.  [default: none]",
)
SLOTS: Decorator = click.option(
    "--slots", metavar="DIR", required=True, help="The server's --slot-save-path, as seen from here."
)
VARIANT: Decorator = click.option(
    "--variant",
    metavar="TEXT",
    default="",
    help="Options of the server that change its KV, such as those of RoPE: kept slots are restored under equal ones.",
)
API_KEY: Decorator = click.option(
    "--api-key",
    metavar="KEY",
    envvar="PLTZ_LLAMA_API_KEY",
    show_envvar=True,
    help="The API key that the server was started with.",
)


@dataclass(frozen=True)
class ArchiveOptions:
    """Hold the options that name an archive and what its sessions are coded with."""

    tokenizer: str
    tenant: str
    bundle: str | None
    threads: int | None

    def tokenizer_json(self) -> bytes:
        """Return the content of the tokenizer's file. Raises UsageError."""
        try:
            return named_file(self.tokenizer, MAX_TOKENIZER)
        except OSError as exc:
            raise UsageError(f"cannot read {self.tokenizer}: {exc.strerror or exc}") from exc

    def open(self) -> "Archive":
        """Open the archive. Raises UsageError, and what `Archive.open` raises."""
        from pltz.archive import Archive

        tokenizers, place = [self.tokenizer_json()], archive_place()
        cold = Archive.open(
            place, bundle=self.bundle, tokenizers=tokenizers, threads=self.threads, **archive_key(place)
        )
        cold.parts.want_key()
        return cold


# The command takes them as ``into``, an `ArchiveOptions`.
archive_options: Decorator = together(ArchiveOptions, "into", TOKENIZER, TENANT, BUNDLE, THREADS)


@click.group(cls=OrderedGroup, short_help="Freeze and thaw sessions of llama.cpp's llama-server.")
def llama() -> None:
    """Freeze sessions of llama.cpp's llama-server into an archive and thaw them, over its HTTP API.

    Sessions are kept as token ids. URL is that of a running server, such as http://127.0.0.1:8080. For use from Python
    see docs/llama-server.md.
    """


@llama.command(
    cls=ArchiveCommand,
    short_help="Put the session in a slot of a server into an archive.",
    examples=[
        "pltz llama freeze http://127.0.0.1:8080 chat-7 --slot 0 --slots /tmp/slots --archive cold --tokenizer t.json"
    ],
)
@URL
@NAME
@click.option("--slot", type=click.IntRange(min=0), required=True, metavar="N", help="Slot that holds the session.")
@SLOTS
@archive_options
@MODEL
@API_KEY
@JSON
def freeze(
    url: str,
    name: str,
    slot: int,
    slots: str,
    into: ArchiveOptions,
    model: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Put the session in a slot into an archive, under NAME.

    The server saves the slot to a file, the token ids are read from it, and the file is removed. The slot stays
    unchanged. The token sampled last is not in a slot yet. The identity of the served weights and LoRA adapters is kept
    with the session and checked when it is thawed. Where the server's model file is not at the reported path, name it
    with --model. Without it the weights are unknown, and a thaw needs --any-target.
    """
    from pltz.archive import target_of

    server = _server(url, model, api_key)
    cold = into.open()
    ids = server.slot_ids(slot, slots)
    target = target_of(server.target, server.adapter)
    put = cold.put(name, ids, tenant=into.tenant, target=target, tokenizer=into.tokenizer_json())
    _report([put], [], as_json)


@llama.command(
    cls=ArchiveCommand,
    short_help="Bring a session back into a slot of a server.",
    examples=["pltz llama thaw http://127.0.0.1:8080 chat-7 --slot 0 --archive /data/cold --tokenizer tokenizer.json"],
)
@URL
@NAME
@click.option(
    "--slot",
    type=click.IntRange(min=0),
    metavar="N",
    help="Slot to fill. A slot that the server does not have is refused.  [default: the server's choice]",
)
@click.option(
    "--any-target", is_flag=True, help="Allow any weights and adapters. Needed where those of the session are unknown."
)
@click.option(
    "--slots", metavar="DIR", help="The server's --slot-save-path: restore a file that pltz llama watch kept."
)
@archive_options
@VARIANT
@VERSION
@MODEL
@API_KEY
@JSON
def thaw(
    url: str,
    name: str,
    slot: int | None,
    any_target: bool,
    slots: str | None,
    into: ArchiveOptions,
    variant: str,
    number: "VersionName | None",
    model: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Bring session NAME back into a slot: one prefill of its ids, nothing sampled.

    The next request that begins with these ids finds them hot. A server with other weights or adapters than those of
    the session is refused, and so is a session with unknown weights, unless --any-target is given. With --slots the KV
    comes from the file that pltz llama watch kept, where all of it is right, and only the rest is prefilled.
    """
    server = _server(url, model, api_key)
    if slots is not None and slot is None:
        raise UsageError("a kept file is restored into a slot that is named: add --slot N")
    found = into.open().get(name, tenant=into.tenant, version=number)
    if slots is not None and slot is not None:
        from pltz.serving.engines.slot_keeper import SlotKeeper

        server.check_thaw(found.target, any_target=any_target)
        SlotKeeper(server, slots, 0, variant=variant).restore(name, found.ids, slot, tenant=into.tenant)
    hot = server.thaw(found.ids, slot=-1 if slot is None else slot, frozen_for=found.target, any_target=any_target)
    report = {"slot": hot.slot, "tokens": hot.tokens, "cached": hot.cached}
    times = {"prefill_ms": round(hot.prefill_ms, 1), "total_ms": round(hot.total_ms, 1)}
    if as_json:
        write_text(json.dumps(report | times))
    else:
        write_text(
            f"slot {hot.slot}: {counted(hot.tokens, 'token')} hot, {hot.cached:,} of them before; "
            f"prefill {hot.prefill_ms:,.0f} ms"
        )


@llama.command(
    cls=ArchiveCommand,
    short_help="Archive the idle slots of a server by themselves.",
    examples=[
        "pltz llama watch http://127.0.0.1:8080 --slots /tmp/slots --journal j --archive cold --tokenizer t.json",
        "pltz llama watch http://127.0.0.1:8080 --slots /tmp/slots --journal j --archive a --tokenizer t.json --once",
    ],
)
@URL
@SLOTS
@click.option("--journal", metavar="DIR", required=True, help="Folder that keeps tokens until they are archived.")
@click.option(
    "--idle",
    metavar="S",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds without a change after which a slot is archived.",
)
@click.option(
    "--keep", metavar="SIZE", type=bytes_of, help="Keep slot files for a quick return, at most that.  [default: none]"
)
@click.option("--once", is_flag=True, help="Archive all slots without a running request, and end.")
@archive_options
@VARIANT
@MODEL
@API_KEY
@JSON
def watch(
    url: str,
    slots: str,
    journal: str,
    idle: float,
    keep: int | None,
    once: bool,
    into: ArchiveOptions,
    variant: str,
    model: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Put the idle slots of a running server into an archive, until this is told to end (SIGTERM, Ctrl-C).

    A slot that did not change for --idle seconds is saved, and its token ids are archived. A session that grows is the
    next version of the one it grew from; others are named after their ids. With --keep the server's own slot files stay
    for a quick return: pltz llama thaw --slots. What has changed by the end is archived then, idle or not. What the
    archive cannot take now stays in the journal (exit code 7: pltz hook drain), and what it never takes is laid aside
    there (5). Where a slot could not be saved at the end, the exit code is 6.
    """
    from pltz.serving.engines.slot_archiver import SlotArchiver
    from pltz.serving.eviction.hook import EvictionHook
    from pltz.serving.eviction.settings import HookSettings

    server = _server(url, model, api_key)
    server.refresh()  # one that does not answer, and a bad key, are refused now
    into.open()
    place = archive_place()
    settings = HookSettings() if into.threads is None else HookSettings(threads=into.threads)
    opened = {"tokenizer": into.tokenizer, "bundle": into.bundle, "key": archive_secret(place), "settings": settings}
    with EvictionHook.open(journal, place, **opened) as hook:  # type: ignore[arg-type]
        archiver = SlotArchiver(server, hook, slots, idle=idle, keep=keep or 0, tenant=into.tenant, variant=variant)
        if not once:
            ended = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: ended.set())
            archiver.start()
            write_text(json.dumps({"watching": url}) if as_json else f"watching {url}")
            ended.wait()
        before = archiver.failed
        archiver.close()
        # An archive that cannot be written does not hold up the end: the journal keeps what is left.
        stuck = ""
        while not stuck and not hook.settle(SETTLE):
            said = hook.status()
            stuck = said["failure"] or said["worker"]["failure"] or ("" if said["worker"]["alive"] else "it ended")
        laid_aside = int(hook.status()["worker"]["rejected"])
        status = {**archiver.status(), "laid_aside": laid_aside}
    write_text(json.dumps(status) if as_json else pairs([(name, f"{count:,}") for name, count in status.items()]))
    if stuck:
        raise ArchiveError(f"sessions wait in the journal {journal} ({stuck}): mend that, then pltz hook drain")
    if archiver.failed > before:
        click.get_current_context().exit(ModelError.exit_code)
    if laid_aside:
        click.echo(f"{laid_aside} sessions do not fit the archive: see pltz hook status", err=True)
        click.get_current_context().exit(ContentError.exit_code)


@llama.command(
    "import",
    cls=ArchiveCommand,
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
    files: tuple[str, ...], into: ArchiveOptions, model: str | None, adapter: str | None, as_json: bool
) -> None:
    """Put the sessions in slot files of llama-server (its --slot-save-path) into an archive.

    Each session is named after its file, without the suffix. Only the token ids are read, and no file is changed. A
    slot file does not name its weights: name them with --model, and a thaw under others is refused. Without --model the
    weights are unknown, and a thaw needs --any-target. A file that cannot be read is reported and the others are put.
    The exit code is then 3 or 5.
    """
    from pltz.archive import target_of
    from pltz.serving.engines.llama_server import fingerprint_gguf
    from pltz.serving.engines.llama_slots import read_slot_ids

    if adapter is not None and (model is None or not adapter):
        raise UsageError("expected --adapter FILE:SCALE beside --model: a session belongs to weights first")
    target = target_of(fingerprint_gguf(model), adapter) if model is not None else None
    cold, tokens = into.open(), into.tokenizer_json()
    puts: list[PutReceipt] = []
    failures: list[tuple[str, FormatError | ContentError]] = []
    for file in files:
        try:
            ids = read_slot_ids(file)
            puts.append(cold.put(Path(file).stem, ids, tenant=into.tenant, target=target, tokenizer=tokens))
        except (FormatError, ContentError) as exc:
            failures.append((file, exc))
    _report(puts, [(file, str(exc)) for file, exc in failures], as_json)
    if failures:
        click.get_current_context().exit(failures[0][1].exit_code)


def _server(url: str, model: str | None, api_key: str | None) -> "LlamaServer":
    from pltz.serving.engines.llama_server import LlamaServer

    return LlamaServer(url, model=model, api_key=api_key)


def _report(puts: "list[PutReceipt]", failures: list[tuple[str, str]], as_json: bool) -> None:
    frozen = [
        {"name": p.name, "tokens": p.tokens, "bytes": p.size, "unchanged": p.unchanged, "target": _target(p)}
        for p in puts
    ]
    if as_json:
        write_text(json.dumps({"frozen": frozen, "failed": [{"file": f, "error": e} for f, e in failures]}))
    elif puts:
        write_text(pairs([(p.name, _line(p)) for p in puts]))
    for file, error in failures:
        click.echo(f"error: {error if file in error else f'{file}: {error}'}", err=True)


def _line(put: "PutReceipt") -> str:
    tokens = counted(put.tokens, "token")
    stored = f"{tokens}, in the archive already" if put.unchanged else f"{tokens} in {size(put.size)}"
    return stored if _target(put) else f"{stored}; weights unknown: a thaw needs --any-target"


def _target(put: "PutReceipt") -> str | None:
    """Return the weights and adapter that the session belongs to, as hex, or None where they are not known."""
    target = put.target or b""
    return target.hex() if any(target) else None
