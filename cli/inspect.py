"""``pltz inspect``: show what a .pltz file says about itself. No token is decoded."""

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted, size
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.table import pairs, render

if TYPE_CHECKING:
    from pltz.plt_codec.container.file import Reader
    from pltz.plt_codec.container.frame import Frame


@click.command(
    cls=Command,
    short_help="Show header, sessions and sizes of FILE; check its bytes.",
    examples=["pltz inspect chats.pltz", "pltz inspect chats.pltz --sessions", "pltz inspect chats.pltz --json"],
)
@options.FILE
@click.option("--sessions", "each", is_flag=True, help="Also print one line per session.")
@options.JSON
def inspect(file: str, each: bool, as_json: bool) -> None:
    """Show header, sessions and sizes of FILE, and check its bytes. FILE may be - for stdin.

    Every byte is under a checksum that is compared, and the head of every frame is read. An error names the damaged
    sessions. The content check of a session is compared only when the session is decoded.
    """
    with options.open_reader(file) as reader:
        reader.verify()
        bundle = bundle_name(reader.header.bundle_id)
        sessions = [entry(i, frame, reader.info(i).size) for i, frame in enumerate(reader)]
        result = overview(reader, sessions, bundle)
    if each:
        result["each"] = sessions
    write_text(json.dumps(result) if as_json else as_text(result))


def bundle_name(bundle_id: bytes) -> str | None:
    """Return the name of the bundle that the file names; None where it is not here, or damaged."""
    from pltz.models.bundle.locations import by_id

    location = by_id(bundle_id)
    found = location.open() if location else None
    return found.name if found else None


def entry(number: int, frame: "Frame", length: int) -> dict[str, Any]:
    """Return what the file says about one session; layout, blocks, lanes and steps of what the model codes."""
    from pltz.coding.log.log_coder import parse
    from pltz.plt_codec.lanes import LAYOUTS, layout_of

    log = parse(frame.data) if frame.log else None
    coded, fast = (log.coded_tokens, log.fast) if log else (frame.coded if frame.by_model else 0, frame.fast)
    found: dict[str, Any] = {
        "session": number,
        "kind": label(frame),
        "is_log": frame.log,
        "method": log.name if log else "model" if frame.by_model else "zstd",
        "opaque_bytes": len(log.opaque) if log else None,
        "tokens": frame.count if frame.by_model else None,
        "plain_bytes": None if frame.by_model else frame.count,
        "bytes": length,
        "context": frame.context,
        "patch_bytes": len(frame.patch),
        "copied_tokens": frame.count - coded if frame.by_model else None,
        "layout": None,
        "blocks": None,
        "lanes": None,
        "steps": None,
    }
    if coded or frame.by_model:
        found |= {"layout": LAYOUTS[fast], **layout_of(coded, fast=fast).extent(coded)._asdict()}
    return found


def label(frame: "Frame") -> str:
    """Return ``chat``, ``chat (log)``, or ``chat (plain)`` for a session kept as compressed bytes."""
    kind = frame.content.kind
    return f"{kind} (log)" if frame.log else kind if frame.by_model else f"{kind} (plain)"


def overview(reader: "Reader", sessions: list[dict[str, Any]], bundle: str | None) -> dict[str, Any]:
    """Return header and totals. Sizes are in bytes; steps are sequential model steps."""
    from pltz.plt_codec.container.header import FORMAT_VERSION

    header = reader.header
    tokenizer, target = header.tokenizer_fingerprint, header.target_fingerprint
    return {
        "format": FORMAT_VERSION,
        "bundle": header.bundle_id.hex(),
        "bundle_name": bundle,
        "tokenizer": tokenizer.hex() if tokenizer else None,
        "target": target.hex() if target else None,
        "exact": header.exact,
        "dropped": ["signatures"] if header.dropped else [],
        "sessions": len(reader),
        "kinds": dict(Counter(found["kind"] for found in sessions)),
        "methods": dict(Counter(found["method"] for found in sessions)),
        "opaque_bytes": sum(found["opaque_bytes"] or 0 for found in sessions),
        "tokens": sum(found["tokens"] or 0 for found in sessions),
        "log_bytes": sum(found["plain_bytes"] or 0 for found in sessions if found["is_log"]),
        "copied_tokens": sum(found["copied_tokens"] or 0 for found in sessions),
        "with_context": sum(found["context"] is not None for found in sessions),
        "layout": ", ".join(sorted({found["layout"] for found in sessions if found["layout"]})),
        "blocks": sum(found["blocks"] or 0 for found in sessions),
        "most_lanes": max((found["lanes"] or 0 for found in sessions), default=0),
        "most_steps": max((found["steps"] or 0 for found in sessions), default=0),
        "bytes": reader.size,
        "frame_bytes": reader.size - reader.overhead,
        "overhead_bytes": reader.overhead,
        "checks_ok": True,
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the report as text."""
    from pltz.models.bundle.locations import described, how_to_get

    kinds = ", ".join(f"{count:,} {kind}" for kind, count in result["kinds"].items()) or "none"
    bundle_id = bytes.fromhex(result["bundle"])
    bundle = result["bundle_name"] or f"not installed here: {how_to_get(bundle_id)}"
    beside = f"; beside {size(result['log_bytes'])} of logs, not counted in tokens" if result["log_bytes"] else ""
    rows = [
        ("format", str(result["format"])),
        ("bundle", f"{result['bundle'] if result['bundle_name'] else described(bundle_id)} ({bundle})"),
        ("tokenizer", result["tokenizer"] or "the bundle's"),
        ("target", result["target"] or "any"),
        ("sessions", f"{result['sessions']:,}: {kinds}; {result['with_context']:,} coded after another"),
        (
            "tokens",
            (
                f"{result['tokens'] - result['copied_tokens']:,} coded by the model, in "
                f"{counted(result['blocks'], 'block')}; {result['copied_tokens']:,} copied{beside}"
            ),
        ),
        ("methods", ", ".join(f"{count:,} by {name}" for name, count in result["methods"].items()) or "none"),
        (
            "layout",
            (
                f"{result['layout'] or 'none'}: at most {counted(result['most_lanes'], 'lane')} and "
                f"{counted(result['most_steps'], 'step')} per session"
            ),
        ),
        (
            "bytes",
            (
                f"{result['bytes']:,}: {result['frame_bytes']:,} of frames, {result['overhead_bytes']:,} beside; "
                f"{result['opaque_bytes']:,} of ids, hashes and signatures in logs"
            ),
        ),
        ("checks", "all hold"),
    ]
    if result["dropped"]:
        rows.insert(-1, ("dropped", f"{', '.join(result['dropped'])} of thinking, where there were some"))
    text = pairs(rows, indent="")
    return f"{text}\n\n{session_table(result['each'])}" if "each" in result else text


def session_table(sessions: list[dict[str, Any]]) -> str:
    """Return a table with one line per session."""
    head = ["session", "kind", "method", "tokens", "bytes", "bits/token", "blocks", "lanes", "steps", "after"]
    return render(head, [session_row(found) for found in sessions])


def session_row(found: dict[str, Any]) -> list[str]:
    """Return the cells of one session, - where the file does not say."""
    tokens, length = found["tokens"], found["bytes"]
    rate = f"{8 * length / tokens:.2f}" if tokens else "-"
    shape = ["-" if found[key] is None else f"{found[key]:,}" for key in ("blocks", "lanes", "steps", "context")]
    count = size(found["plain_bytes"]) if tokens is None else f"{tokens:,}"
    return [str(found["session"]), found["kind"], found["method"], count, f"{length:,}", rate, *shape]
