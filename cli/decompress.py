"""``pltz decompress``: the sessions of a .pltz file, as they were."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from pltz import api
from pltz.cli import options
from pltz.cli.groups import Command
from pltz.cli.output import Output
from pltz.cli.progress import Progress, wanted
from pltz.plt_codec.errors import ContentError

if TYPE_CHECKING:
    from pltz.models.session import Session

FORMATS = ("auto", "jsonl", "text", "ids")


@click.command(
    cls=Command,
    short_help="Write the sessions of FILE as they were frozen.",
    examples=[
        "pltz decompress chats.pltz -o chats.jsonl",
        "pltz decompress chats.pltz --session 7 --session 12",
        "pltz decompress notes.pltz --session 0 -o a.txt",
        "pltz decompress - < chats.pltz | head -n 1",
    ],
)
@options.FILE
@click.option("-o", "--output", default="-", metavar="OUT", help="Where to write.  [default: stdout]")
@options.SESSIONS
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="How to write: one JSON line a session, the bytes of texts, or one JSON list of ids a line.",
)
@options.BUNDLE
@options.TARGET
@options.TOKENIZER
@options.FORCE
@options.THREADS
@options.DEVICE
@options.PROGRESS
def decompress(
    file: str,
    output: str,
    indices: tuple[int, ...],
    form: str,
    bundle: str | None,
    target: str | None,
    tokenizer: str | None,
    force: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
) -> None:
    """Write the sessions of FILE as they were frozen; - is stdin.

    Chats come back as JSONL, value for value; a text byte for byte; token ids as JSON lists. Of several
    texts, pick one with --session, or join them with --format text. Nothing is written unless every
    session asked for passed its check.

    Ids of a foreign tokenizer need it again: --tokenizer FILE, or --target MODEL.
    """
    options.one_tokenizer(target, tokenizer)
    destination = Output(output, force=force, inputs=[file], binary=False)
    with options.open_reader(file) as reader:
        codec = options.load_codec_for(reader, bundle, device, threads)
        opened = api.open(reader, bundle=codec, target=target, tokenizer=tokenizer)
        with Progress("decode", unit="tokens", shown=wanted(progress)) as bar:
            sessions = codec.decompress(reader, indices or None, bridge=opened.bridge, progress=bar.add)
    destination.write(list(render(sessions, form)))


def render(sessions: Sequence["Session"], form: str) -> Iterator[bytes]:
    """The sessions in an output format; ``auto`` is the bytes of a single text, else one JSON line each.

    Raises:
        ContentError: a session has no place in the format.
    """
    if form == "auto":
        form = "text" if [session.kind for session in sessions] == ["text"] else "jsonl"
    for number, session in enumerate(sessions):
        if form == "jsonl":
            yield json_line(session, number)
        elif session.kind != form:
            raise ContentError(f"session {number} of the selection is of kind {session.kind}, not {form}")
        else:
            yield session.value if form == "text" else session.to_json_line()


def json_line(session: "Session", number: int) -> bytes:
    """One JSONL line. Raises ContentError, with the way out, for a text that never was one."""
    try:
        return session.to_json_line()
    except ContentError as error:
        raise ContentError(
            f"session {number} of the selection: {error} (pick one with --session I, or join texts "
            "with --format text)"
        ) from error
