"""``pltz decompress``: write the sessions of a .pltz file as they were frozen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from pltz import api
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import Output
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.session_output import SESSION_FORMAT, form_of, render, written

if TYPE_CHECKING:
    from pltz.plt_codec.container.file import Info


@click.command(
    cls=Command,
    short_help="Write the sessions of FILE as they were frozen.",
    examples=[
        "pltz decompress chats.pltz -o chats.jsonl",
        "pltz decompress chats.pltz --session 5,7,10-20",
        "pltz decompress notes.pltz --session 0 -o a.txt",
        "pltz decompress - < chats.pltz | head -n 1",
        "pltz decompress chats.pltz -o chats.jsonl --json",
    ],
)
@options.FILE
@options.OUTPUT
@options.SESSIONS
@SESSION_FORMAT
@options.TARGET
@options.TOKENIZER
@options.decode_limits
@options.FORCE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
def decompress(
    file: str,
    output: str,
    indices: tuple[int, ...],
    form: str,
    target: str | None,
    tokenizer: str | None,
    max_tokens: int | Literal["auto"] | None,
    max_bytes: int | None,
    max_seconds: float | None,
    force: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Write the sessions of FILE as they were frozen. FILE may be - for stdin.

    Chats come back as JSONL with equal values, the one log of an agent as the lines that it was, a text byte for byte,
    and token ids as JSON lists. Several sessions are a line each. Where there are several texts, pick one with
    --session, or join them with --format text. Nothing is written unless every chosen session passes its check.

    A file that you do not trust may ask for much work. --max-tokens refuses it before it is decoded, --max-bytes as
    soon as its content is larger, and --max-seconds when the time is over.

    A file of compress --exact comes back as the bytes that went in. --format writes it as any other file.

    Ids of a foreign tokenizer need it again: --tokenizer FILE, or --target MODEL.
    """
    options.one_tokenizer(target, tokenizer)
    from pltz.coding.decode_limits import DecodeLimits

    destination = Output(output, force=force, inputs=[file], binary=False)
    limits = DecodeLimits(max_tokens, max_bytes, max_seconds)
    with options.open_reader(file) as reader:
        codec = options.load_codec_for(reader, device, threads)
        opened = api.open(reader, bundle=codec, target=target, tokenizer=tokenizer)
        numbers = indices or range(len(reader))
        wants_log = form == "auto" and not reader.header.exact
        if form == "auto":
            kinds = [reader.info(number).content.kind for number in numbers[:2]]
            form = "exact" if reader.header.exact else form_of(kinds)
        total = sum(tokens_of(reader.info(n)) for n in numbers)
        first = first_refused([reader.info(number) for number in numbers], form)
        if first is not None and len(numbers) > 1:  # before the minutes that decoding the others may take
            [session] = codec.decompress_each(reader, [numbers[first]], bridge=opened.bridge, limits=limits)
            for _ in render([session], form, first):
                pass
        with Progress("decode", unit="tokens", total=total, shown=wanted(progress)) as bar:
            sessions = codec.decompress_each(reader, numbers, bridge=opened.bridge, progress=bar.add, limits=limits)
            if wants_log and len(numbers) == 1:
                from pltz.datasets.file_forms import is_log

                sessions = iter(found := list(sessions))
                form = "agent-log" if is_log(found[0], known=len(reader) > 1) else form
            destination.write(render(sessions, form), whole=True)
    if as_json:
        destination.report(written(destination, len(numbers)))


def first_refused(sessions: "Sequence[Info]", form: str) -> int | None:
    """Return the number of a session that, by its kind, a format may not take; of texts the shortest."""
    takes = {"text": ("text",), "ids": ("ids",), "jsonl": ("chat", "ids"), "agent-log": ("chat", "text")}
    wrong = [n for n, info in enumerate(sessions) if info.content.kind not in takes.get(form, (info.content.kind,))]
    return min(wrong, key=lambda number: sessions[number].count, default=None)


def tokens_of(info: "Info") -> int:
    """Return about the tokens of a session that the model decodes."""
    from pltz.coding.log.log_coder import BYTES_PER_TOKEN

    return info.count // BYTES_PER_TOKEN if info.log else info.count if info.by_model else 0
