"""Pages hold what was said and nothing that a log could make of it: no script, link, control or foreign file."""

import base64
import html.parser
from typing import Any

import pytest

from pltz.datasets.conversation import ConversationTurn, conversation_of
from pltz.datasets.pages import as_html, as_markdown, call_lines, clean
from pltz.models.session.session import Session

PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
HOSTILE = [
    "<script>alert(1)</script>", "</pre></div><img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) ![x](https://evil.example/pixel.png) <https://evil.example>",
    "\x1b[2J\x1b]0;owned\x07\x9b31m\r over", "\u202egnp.exe\u2066", "&lt;b&gt; \ud800", '" onload="alert(1)',
    "--><!-- ]]>",
]


class Tags(html.parser.HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.met: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.met.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said += data


KNOWN = {"html", "head", "meta", "title", "style", "body", "h1", "p", "section", "header", "time", "div", "pre", "img"}
KNOWN |= {"details", "summary", "ins", "del"}


def turns_of(text: str, role: str = "user") -> list[ConversationTurn]:
    call = (text, {text: text, "old_string": text, "new_string": text + "\n"})
    urls = (text, f"data:image/svg+xml;base64,{text}", f'{PIXEL}" onload="x')
    first = ConversationTurn(1, role, text, -1, (call,), urls)
    return [first, ConversationTurn(2, "tool", text), ConversationTurn(3, text, "")]


def want_harmless(page: str) -> None:
    for tag, attributes in Tags(page).met:
        assert tag in KNOWN
        assert attributes.keys() <= {"class", "id", "charset", "http-equiv", "content", "open", "src", "alt"}
        assert (attributes.get("src") or PIXEL).startswith("data:image/png;base64,")
    assert not [c for c in page if not c.isprintable() and c not in "\n\t\u200c\u200d"]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_hostile_gets_into_html(text: str) -> None:
    page = "\n".join(as_html(text, text, turns_of(text)))
    want_harmless(page)
    assert clean(text) in Tags(page).said  # it can be read


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_hostile_gets_into_markdown(text: str) -> None:
    page = "\n".join(as_markdown(text, text, [ConversationTurn(1, "user", text, 0), *turns_of(text)[2:]]))
    assert "<" not in page and "](" not in page and "\x1b" not in page and "\u202e" not in page


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("```html\n<b>\n```\n<b>", "```html\n<b>\n```\n&lt;b>"),
        ("  ```\n<b>", "  ```\n&lt;b>"),  # in a list it would end with the list
        ("- a\n```\n<b>", "- a\n```\n<b>\n```"),  # closed, or it would swallow what follows
        ("~~~\n```\n<b>\n   ~~~~  \n<b>", "~~~\n```\n<b>\n   ~~~~  \n&lt;b>"),
        ("``` a`b\n<b>", "``` a`b\n&lt;b>"),  # no fence
    ],
)
def test_code_in_markdown_is_kept(text: str, wanted: str) -> None:
    assert "\n".join(as_markdown("x", "", [ConversationTurn(1, "user", text)])) == f"# x\n\n## 1 user\n\n{wanted}\n"


def test_a_result_cannot_leave_its_fence() -> None:
    page = "\n".join(as_markdown("x", "", [ConversationTurn(1, "tool", "a\n````\n<script>")]))
    assert page.endswith("`````\na\n````\n<script>\n`````\n")


def test_pictures_stand_in_their_place_and_long_results_are_folded() -> None:
    turns = [ConversationTurn(1, "user", "see", 1767603600, (), (PIXEL,)), ConversationTurn(2, "tool", "line\n" * 20)]
    page = "\n".join(as_html("x", "", turns))
    assert f'<img alt="picture" src="{PIXEL}">' in page and "2026-01-05 09:00" in page
    assert "<details><summary>21 lines</summary>" in page and "default-src 'none'" in page


def test_an_edit_is_a_patch() -> None:
    assert call_lines("apply_patch", {"input": "*** Begin Patch\n-a\n+b"}) == (
        "apply_patch()",
        ["*** Begin Patch", "-a", "+b"],
    )


def block(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


@pytest.mark.parametrize("part", [
    block("image", source={"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}),
    block("image_url", image_url={"url": PIXEL}),
    block("input_image", image_url=PIXEL),
    block("image", data=PIXEL.partition(",")[2], mimeType="image/png"),
])
def test_pictures_of_each_maker_are_found(part: dict[str, Any]) -> None:
    content = [block("text", text="see"), part]
    [turn] = conversation_of(Session("chat", [{"role": "user", "content": content}])).turns
    assert turn.pictures == (PIXEL,) and turn.text.startswith("see\n[")
