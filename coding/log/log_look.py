"""A cheap look at a session: a log, which is worth a table, or a conversation, which is worth a transcript.

    [{"role": "user", "content": "Where is my bicycle?"}, ...]                     a conversation
    [{"type": "user", "uuid": "3f...", "message": {...}, "timestamp": ...}, ...]   a log

The transcript of a chat is text, and the table of a log takes its keys, ids and times out of the text. So a session is
a log where less than half of its bytes are what its messages say. A short one is none: a table starts with nothing.
JSON that is kept as a text is one from `LEAST_ESCAPED` bytes on where a quarter of it is escapes such as \\u4f60. A
table takes them out, and the model would code each digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pltz.coding.log import table
from pltz.models.session.session import messages_of

if TYPE_CHECKING:
    from pltz.models.session.session import Session

LEAST = 4096  # bytes
LEAST_ESCAPED = 256  # the same of JSON that is kept as a text and of which a quarter is escapes
ESCAPE = 6  # bytes of an escape


def is_log(session: Session, content: bytes) -> bool:
    """Return whether a session is coded as a log. ``content``: its bytes, as `Session.to_bytes` gives them.

    >>> from pltz.models.session.session import Session
    >>> chat = Session("chat", [{"role": "user", "content": "word " * 2000}])
    >>> log = Session("chat", [{"type": "text", "message": {"role": "user", "content": "word " * 2000}}])
    >>> is_log(chat, chat.to_bytes()), is_log(log, log.to_bytes())
    (False, True)
    """
    escaped = session.kind == "text" and 4 * ESCAPE * content.count(b"\\u") > len(content)
    least = LEAST_ESCAPED if escaped else LEAST
    if session.kind == "ids" or len(content) <= least or not table.looks_like_log(content):
        return False
    return session.kind == "text" or 2 * _spoken(messages_of(session) or ()) < len(content)


def _spoken(messages: Any) -> int:
    """Return the characters that messages with a role say: of a content that is a string, or of its parts' texts."""
    said = 0
    for message in messages:
        if isinstance(message, dict) and isinstance(message.get("role", message.get("from")), str):
            content = message.get("content", message.get("value"))
            parts = content if isinstance(content, list) else [{"text": content}]
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            said += sum(len(text) for text in texts if isinstance(text, str))
    return said
