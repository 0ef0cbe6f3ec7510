"""Secrets in sessions: keys and passwords of a known shape, which are marked in what is shared.

    found = Redactor()
    found.session(session)          # the same with [redacted: aws-key] in place of each
    found.counts                    # Counter({"aws-key": 2})

The rules are those of detect-secrets (`pip install 'pltz[secrets]'`), but for those that took most of the time and
found nothing in 18 MB of logs and chats, and some of our own for keys that it does not know. What has no shape, such as
a password in a sentence, is not found. A log stays JSON: a secret ends before a quote.

    in 30 MB of agents' logs    found    right
    basic-auth                  76       all: passwords in URLs of databases, and words that stand for one
    bearer-token                 2       all
    aws-key, without bounds     12       none: all in base64, so what begins amid a word is no secret

One core looks at 11.6 MB/s.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Final, NamedTuple

from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session
from pltz.plt_codec.errors import ContentError, UsageError

PIECE: Final = 1 << 22  # bytes of a long text that are looked at together, and then to the end of a line
NEAR: Final = 1 << 15  # bytes to each side of the end of a piece that are searched for a secret across it
BEFORE: Final = 256  # bytes before a secret that may tell that it is one, as one behind it may
LEAST: Final = 8  # characters of a group of a rule that is the secret; a shorter one is a prefix of it
DETECTORS: Final = {  # of detect-secrets, by the mark that we give
    "artifactory-key": "artifactory:ArtifactoryDetector",
    "aws-key": "aws:AWSKeyDetector",
    "azure-storage-key": "azure_storage_key:AzureStorageKeyDetector",
    "basic-auth": "basic_auth:BasicAuthDetector",
    "discord-token": "discord:DiscordBotTokenDetector",
    "github-token": "github_token:GitHubTokenDetector",
    "gitlab-token": "gitlab_token:GitLabTokenDetector",
    "mailchimp-key": "mailchimp:MailchimpDetector",
    "openai-key": "openai:OpenAIDetector",
    "pypi-token": "pypi_token:PypiTokenDetector",
    "sendgrid-key": "sendgrid:SendGridDetector",
    "slack-token": "slack:SlackDetector",
    "square-secret": "square_oauth:SquareOAuthDetector",
    "stripe-key": "stripe:StripeDetector",
    "telegram-token": "telegram_token:TelegramBotTokenDetector",
    "twilio-key": "twilio:TwilioKeyDetector",
}
_PEM: Final = "[A-Z ]{0,24}PRIVATE KEY(?: BLOCK)?-----"
OWN: Final = {
    "anthropic-key": r"sk-ant-[A-Za-z0-9_-]{20,}",
    "bearer-token": r"""(?i:authorization)[\\"']{0,4}: ?[\\"']{0,2}(?i:bearer|basic) +([A-Za-z0-9._~+/-]{16,}=*)""",
    "github-token": r"github_pat_[A-Za-z0-9_]{60,}",
    "google-key": r"AIza[0-9A-Za-z_-]{35}",
    "huggingface-token": r"hf_[A-Za-z0-9]{34}",
    "jwt": r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",
    "npm-token": r"npm_[A-Za-z0-9]{36}",
    "openai-key": r"sk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{20,}",
    "private-key": rf"-----BEGIN {_PEM}[^\"-]{{16,16384}}(?:-----END {_PEM})?",
}
_WORD: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+")
_ESCAPES: Final = frozenset("nrtbf")  # letters that JSON has behind a backslash, before what is no part of a word


class FoundSecret(NamedTuple):
    """A secret in a text, at ``begin`` to ``end``. ``mark``: its kind."""

    begin: int
    end: int
    mark: str


@cache
def rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the rules: the mark of each, and what finds it. Raises UsageError without detect-secrets."""
    found = [(mark, re.compile(rule)) for mark, rule in OWN.items()]
    try:
        for mark, place in DETECTORS.items():
            module, _, name = place.partition(":")
            detector = getattr(import_module(f"detect_secrets.plugins.{module}"), name)()
            found += [(mark, rule) for rule in detector.denylist]
    except ImportError as exc:
        raise UsageError(f"the rules for secrets are in an extra: pip install 'pltz[secrets]' ({exc})") from exc
    return tuple(found)


def secrets_in(text: str) -> list[FoundSecret]:
    """Return the secrets in a text, which may be lines of JSON, in their order. None overlaps another."""
    found = sorted(one for mark, rule in rules() for match in rule.finditer(text) if (one := _secret(match, mark)))
    kept = list[FoundSecret]()
    for one in found:
        if not kept or one.begin >= kept[-1].end:
            kept.append(one)
        elif one.end > kept[-1].end:  # one mark for both
            kept[-1] = kept[-1]._replace(end=one.end)
    return kept


def _secret(match: re.Match[str], mark: str) -> FoundSecret | None:
    """Return the secret of a match: its longest group, or all of it; None amid a longer word."""
    text = match.string
    groups = [match.span(number) for number in range(1, len(match.groups()) + 1)]
    begin, end = max(groups, key=lambda span: span[1] - span[0], default=(0, 0))
    if end - begin < LEAST:
        begin, end = match.span()
    while begin < end and text[begin] in " \t\n=:\"'":
        begin += 1
    quote = text.find('"', begin, end)
    end = end if quote < 0 else quote
    while end > begin and text[end - 1] in "\\ \t\n'":
        end -= 1
    if end - begin < 4:
        return None
    if text[begin] in _WORD and text[begin - 1 : begin] in _WORD and not _is_escape(text, begin - 1):
        return None
    while text[end - 1] in _WORD and text[end : end + 1] in _WORD:  # some issuers have made their keys longer
        end += 1
    return FoundSecret(begin, end, mark)


def _is_escape(text: str, place: int) -> bool:
    """Return whether a letter is that of an escape of JSON: behind an odd number of backslashes."""
    start = place
    while start and text[start - 1] == "\\":
        start -= 1
    return text[place] in _ESCAPES and (place - start) % 2 == 1


class Redactor:
    """Puts marks in the place of secrets. ``counts``: how many so far, by mark."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        rules()

    def text(self, text: str) -> str:
        """Return a text with marks.

        >>> Redactor().text("the key AKIAABCDEFGHIJKLMNOP.")
        'the key [redacted: aws-key].'
        """
        parts, at = list[str](), 0
        for found in secrets_in(text):
            parts += [text[at : found.begin], f"[redacted: {found.mark}]"]
            self.counts[found.mark] += 1
            at = found.end
        return "".join([*parts, text[at:]]) if parts else text

    def data(self, data: bytes) -> bytes:
        """Return bytes with marks; without secrets the same ones."""
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def session(self, session: Session) -> Session:
        """Return a session with marks. Raises ContentError for token ids, whose words are not looked at."""
        if session.kind == "ids":
            raise ContentError("token ids cannot be redacted: leave --redact out")
        if session.kind == "chat":
            line = session.to_json_line()
            marked = self.data(line)
            return session if marked == line else replace(Session.from_json_line(marked), writing=0)
        if isinstance(session.value, LongText):
            pieces = map(self.data, pieces_of(session.value))
            return replace(session, value=LongText.filled(session.value.name, pieces))
        return replace(session, value=self.data(session.value))

    def report(self) -> str:
        """Return how many secrets were marked, in words."""
        return ", ".join(f"{count:,} {mark}" for mark, count in sorted(self.counts.items())) or "nothing"


def pieces_of(text: LongText) -> Iterator[bytes]:
    """Yield a long text in pieces that end with a line, where that is near, and in no secret."""
    begin = 0
    while begin < len(text):
        end = min(begin + PIECE, len(text))
        end = text.find(b"\n", end, end + PIECE) + 1 or end
        near = max(begin, end - NEAR)
        for found in secrets_in(text[near : end + NEAR].decode("latin-1")):
            if near + found.begin - BEFORE < end <= near + found.end:
                end = min(near + found.end + 1, len(text))
        yield text[begin:end]
        begin = end
