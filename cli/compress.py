"""``pltz compress``: freeze session files into one .pltz file."""

import json
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pltz import api
from pltz.archive.humanize import counted, size
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import Output, say_if_interrupted, write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.session_input import (
    INPUT_FORMAT,
    InputFiles,
    as_fields as fields_of,
    as_text as text_of,
    content_alone,
    drops,
    input_options,
    left_out,
)
from pltz.plt_codec.errors import ContentError, UsageError

if TYPE_CHECKING:
    from pltz.models.session.session import Session


@click.command(
    cls=Command,
    short_help="Freeze sessions into one .pltz file.",
    examples=[
        "pltz compress chats.jsonl -o chats.pltz",
        "pltz compress a.txt b.txt --format text -o notes.pltz",
        "pltz compress chats.jsonl -o chats.pltz --level 2",
        "pltz compress - -o - < chats.jsonl > chats.pltz",
        "pltz compress chats.jsonl -o chats.pltz --target mini-llama --json",
    ],
)
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="OUT", help="The .pltz file to write; - for stdout.")
@INPUT_FORMAT
@input_options
@click.option("--recognise-only", "only", is_flag=True, help="List what the inputs hold and code nothing.")
@options.LEVEL
@options.BUNDLE
@options.TARGET
@options.TOKENIZER
@click.option("--no-verify", is_flag=True, help="Do not decode back and compare before writing.")
@click.option("--keep-opaque", is_flag=True, help="Keep sessions with image, audio or file parts, as plain bytes.")
@options.FORCE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
def compress(
    inputs: tuple[str, ...],
    output: str | None,
    form: str,
    only: bool,
    level: int | None,
    bundle: str | None,
    target: str | None,
    tokenizer: str | None,
    no_verify: bool,
    keep_opaque: bool,
    force: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Freeze the sessions of INPUT... into one .pltz file. `pltz archive put` puts them into an archive.

    INPUT is JSONL, a JSON document, a text file, or token ids. A line of JSONL is one chat: {"messages": [...]},
    ShareGPT, or any JSON. A text file is one session. Ids are a .npy file, or lists of numbers with --format ids. It
    may be plain, .gz or .zst, a folder of these, or - for stdin. Every session is decoded back and compared before the
    file is written. The file appears whole or not at all, and inputs are never modified. One of several files that
    cannot be read is refused, and the others are written (exit code 5).

    With --target the chat is rendered by that model's chat template, and its token ids are kept instead of the chat.
    They are coded through a bridge and thaw only into that model.

    A session that is like an earlier one of the same file is coded after it where that takes fewer bytes. It is read
    together with that one, and lost with it. With --level 5 each is coded alone, which is also faster.

    With --exact the sessions of several inputs come back one after the other, and of a .gz or .zst what is inside.
    """
    options.one_tokenizer(target, tokenizer)
    # --recognise-only ends before anything is loaded.
    if only:
        source = InputFiles(inputs, form, refusing=True, several=len(inputs) > 1)
        for _ in source:
            pass
        write_text(json.dumps(fields_of(source)) if as_json else text_of(source))
        if source.refused:
            click.get_current_context().exit(ContentError.exit_code)
        return
    if output is None:
        raise UsageError("name the file to write: -o OUT; - is stdout")
    bundle, how = options.level_of(level, bundle)
    # The output is opened first, so that a bad path costs no coding.
    destination = Output(output, force=force, inputs=[*inputs, *filter(None, [tokenizer])])
    codec = options.load_codec(bundle, device, threads)
    source = InputFiles(inputs, form, refusing=True, several=len(inputs) > 1)
    start = time.perf_counter()
    say_if_interrupted(
        "interrupted: nothing was written, as a .pltz file is whole or not at all; pltz archive put keeps what is done"
    )
    with Progress("read", unit="sessions", shown=wanted(progress)) as bar:
        data = api.compress(
            reading(some_sessions(source), bar),
            bundle=codec,
            target=target,
            tokenizer=tokenizer,
            layout=how.layout,
            model_logs=how.model_logs,
            independent=not how.neighbours,
            verify=not no_verify,
            keep_opaque=keep_opaque,
            exact=source.exact,
            dropped=bool(drops()),
            progress=bar,
        )
        seconds = time.perf_counter() - start
        bar.begin("write", len(data), "bytes")
        destination.write([data])
        bar.add(len(data))
    result = summary(source, data, seconds, verified=not no_verify)
    destination.report(json.dumps(result | {"output": output}) if as_json else sentence(result, output))
    if source.refused:
        click.get_current_context().exit(ContentError.exit_code)


def reading(sessions: Iterator["Session"], bar: Progress) -> Iterator["Session"]:
    """Yield sessions and count them in the phase ``read``, to which each batch comes back."""
    for before, session in enumerate(sessions):
        if bar.label != "read":
            bar.begin("read", unit="sessions")
            bar.add(before)
        bar.add(1)
        yield session


def some_sessions(source: InputFiles) -> Iterator["Session"]:
    """Yield the sessions of all inputs.

    Raises UsageError for a folder without sessions, or where all is refused: an empty file was hardly intended.
    """
    yield from source
    if not source.files and (source.refused or any(os.path.isdir(path) for path in source.paths)):
        raise UsageError(f"expected sessions in {' '.join(source.paths)}, found none: nothing was written")


def summary(source: InputFiles, data: bytes, seconds: float, *, verified: bool) -> dict[str, Any]:
    """Return the counts and sizes of one run.

    Sizes are in bytes. Content is message texts, texts, and 4 bytes per token id.
    """
    content = source.content_bytes
    return {
        "sessions": sum(source.nouns.values()),
        "recognised": dict(sorted(source.nouns.items())),
        "content_bytes": content,
        "methods": methods(data),
        "with_context": with_context(data),
        "frozen_bytes": len(data),
        "ratio": round(content / len(data), 3),
        **({"dropped": list(drops()), "dropped_bytes": source.dropped} if drops() else {}),
        **({"left_out": dict(source.left)} if source.left else {}),
        **({"packings": sorted(source.packings)} if source.packings else {}),
        **({"refused": source.refused} if source.refused else {}),
        "verified": verified,
        "seconds": round(seconds, 3),
    }


def methods(data: bytes) -> dict[str, int]:
    """Return how many sessions of a .pltz file the model coded, how many zstd, and how many were coded as logs."""
    from pltz.plt_codec.container.file import Reader

    reader = Reader(data)
    infos = [reader.info(number) for number in range(len(reader))]
    by_model, logs = sum(info.by_model for info in infos), sum(info.log for info in infos)
    return {"model": by_model, "zstd": len(reader) - by_model - logs, "log": logs}


def with_context(data: bytes) -> int:
    """Return how many sessions of a .pltz file were coded after another one."""
    from pltz.plt_codec.container.file import Reader

    reader = Reader(data)
    return sum(reader.info(number).context is not None for number in range(len(reader)))


def sentence(result: dict[str, Any], output: str) -> str:
    """Return the summary in one line."""
    nouns = ", ".join(f"{count:,} {noun}" for noun, count in result["recognised"].items()) or "none"
    dropped = f", {size(result['dropped_bytes'])} of signatures dropped" if "dropped" in result else ""
    return (
        f"{output}: {counted(result['sessions'], 'session')} ({nouns}), "
        f"{size(result['content_bytes'])} of content -> "
        f"{size(result['frozen_bytes'])} (1 : {result['ratio']:.1f}){dropped}, "
        f"{'decoded back and compared' if result['verified'] else 'not verified'}, {result['seconds']:.1f} s"
        f"{'; ' * ('left_out' in result)}{left_out(result.get('left_out', {}))}"
        f"{'; ' * ('packings' in result)}{content_alone(result.get('packings', ()))}"
        f"{'; ' + counted(len(result['refused']), 'file') + ' refused' if 'refused' in result else ''}"
    )
