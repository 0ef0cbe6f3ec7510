"""Forms of files: which file a session was put from, by its name and content, and by a tag where these do not tell.

    name               content                 tag          file
    chats/0, chats/1   chats                                chats.jsonl, a line each
    shop/4f35e220      events of an agent                   shop/4f35e220.jsonl
    notes/0            a text                  .md          notes.md
    tasks/8            events of an agent      8.jsonl      tasks/8.jsonl, and not line 8 of tasks.jsonl

The tag `FILE` has the suffix of the file, after the number where the file itself is named so. Most sessions need none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pltz.datasets import registry
from pltz.datasets.file_names import ROLLOUT, STDIN, stem_of, unpacked
from pltz.datasets.formats import events
from pltz.datasets.input_format import EVENTS, HEAD, InputFormat
from pltz.datasets.json_files import is_json
from pltz.models.session.long_text import LongText

if TYPE_CHECKING:
    from pltz.models.session.session import Session

FILE: Final = "pltz.file"  # tag of a session whose file is not told by its name and content
NUMBERED: Final = re.compile(r"(.+)/(0|[1-9][0-9]{0,8})", re.DOTALL)  # STEM/NUMBER, as `put` names those of one file


class NamedFile(NamedTuple):
    """A file by the name and tags of a session in it.

    ``stem``: its path without a suffix. ``number``: of the session in it, None where the file is one session.
    ``suffix``: where a tag says it.
    """

    stem: str
    number: int | None
    suffix: str | None


def file_of(name: str, tags: Mapping[str, str]) -> NamedFile:
    """Return the file of a session.

    >>> file_of("chats/3", {}), file_of("tasks/8", {FILE: "8.jsonl"}).number
    (NamedFile(stem='chats', number=3, suffix=None), None)
    """
    match, form = NUMBERED.fullmatch(name), tags.get(FILE)
    if match is None:
        return NamedFile(name, None, form if _is_suffix(form) else None)
    if form is not None and form.startswith(match[2]) and _is_suffix(form[len(match[2]) :]):
        return NamedFile(name, None, form[len(match[2]) :])
    return NamedFile(match[1], int(match[2]), form if _is_suffix(form) else None)


def _is_suffix(word: str | None) -> bool:
    """Return whether a word may stand behind a name: nothing, or a dot and letters that lead to no other folder."""
    return word is not None and re.fullmatch(r"(\.[\w.+~-]{1,40})?", word) is not None


def tags_of_file(name: str, file: str, session: Session, *, numbered: bool) -> dict[str, str]:
    """Return the tag of a session that is alone in its file; none where name and content tell the file.

    ``name``: as `file_names` makes it of ``file``. ``numbered``: it ends with the number of the session in its file.

    >>> from pltz.models.session.session import Session
    >>> tags_of_file("notes/0", "notes.md", Session("text", b"words"), numbered=True)
    {'pltz.file': '.md'}
    >>> tags_of_file("notes/0", "notes.txt", Session("text", b"words"), numbered=True)
    {}
    """
    if file == STDIN:
        return {}
    suffix = unpacked(file).removeprefix(stem_of(file))
    if not numbered and not ROLLOUT.fullmatch(stem_of(file)):  # a rollout is one session, packed or not
        suffix += PurePath(file).name.removeprefix(unpacked(file))
    match = None if numbered else NUMBERED.fullmatch(name)
    if match is not None:
        return {FILE: match[2] + suffix} if _is_suffix(suffix) else {}
    stem = name.rpartition("/")[0] if numbered else name
    told = suffix == suffix_in(stem, suffix_of(session, numbered=numbered))
    return {FILE: suffix} if _is_suffix(suffix) and not told else {}


def suffix_in(stem: str, suffix: str) -> str:
    """Return the suffix of a file with such a stem, which may end with it already, as in issue-7.traj.json."""
    return ".json" if stem.endswith(suffix) else suffix


def suffix_of(session: Session, *, numbered: bool = False) -> str:
    """Return the suffix of the file that a session is alone in. ``numbered``: its name ends with its number there."""
    if session.kind == "ids":
        return ".json"
    known, usual = None, ".json"
    if session.kind == "chat":
        rows = isinstance(session.value, list) and all(isinstance(event, dict) for event in session.value)
        known = _known(registry.of_value, session.value)
        if numbered and known and known.noun == "agent log":
            return ".jsonl"  # a document that is a log is one line of many, where it has a number
        usual = ".jsonl" if rows and not is_line(session, numbered=numbered) else ".json"
    else:
        value: bytes = session.value[:HEAD] if isinstance(session.value, LongText) else session.value
        if value.lstrip()[:1] not in (b"{", b"["):
            known, usual = registry.of_head(value[:HEAD]), ".txt"
        elif is_json(value):
            known = _known(registry.of_value, json.loads(value))
        else:
            usual = ".jsonl" if is_json(value.splitlines()[0]) else ".txt"
    return known.suffix if known and known.suffix else usual


def is_line(session: Session, *, numbered: bool) -> bool:
    """Return whether a chat is one line of its file, and no line for each event. ``numbered``: as of `suffix_of`."""
    return is_document(session) or (numbered and not is_log(session, known=True))


def is_log(session: Session, *, known: bool = False) -> bool:
    """Return whether a session is the events of an agent, which have a line each. ``known``: of one known by name."""
    value = session.value
    if session.kind != "chat" or not isinstance(value, list) or not value or is_document(session):
        return False
    found = _known(registry.of_events, value[:EVENTS]) if all(isinstance(event, dict) for event in value) else None
    return found is not None and not (known and found is events.FORMAT)


def is_document(session: Session) -> bool:
    """Return whether a list of events is one JSON document in the files of its agent, and not a line for each."""
    is_list = session.kind == "chat" and isinstance(session.value, list)
    found = _known(registry.of_value, session.value) if is_list else None
    return found is not None and found.noun == "agent log"


def _known(recognise: Callable[[Any], InputFormat | None], value: Any) -> InputFormat | None:
    """Return the format of a value; None where its recogniser fails, as what is stored is always given back."""
    try:
        return recognise(value)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # a value may hold anything
        return None
