"""Tools of a chat: written by the model's template, and calls read out of what it says, in two families' forms."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from pltz.models.target.target import Target
from pltz.serving.server import reply_text
from pltz.serving.server.tools import CallReader
from tests.serving.server.opened import Client, served

CHAT = "/v1/chat/completions"
# As the client of OpenAI sends it: `tools=[openai.pydantic_function_tool(...)]` of openai 3.57.
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "strict": True, "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}

# What families write, cut short: tools in the system message and tagged calls (Qwen, Hermes); tools in the first
# message of the user and bare calls (Llama 3).
TAGGED = """{% if tools %}<|system|>
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|end|>
{% elif messages[0].role == 'system' %}<|system|>
{{ messages[0].content }}<|end|>
{% endif %}{% for m in messages if m.role != 'system' %}<|{{ 'user' if m.role == 'tool' else m.role }}|>
{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>{% else %}{{ m.content }}{% endif %}\
{% for call in m.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", "arguments": \
{{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
BARE = """{% set ns = namespace(tools=tools) %}{% for m in messages %}<|{{ m.role }}|>

{% if m.role == 'user' and ns.tools %}Respond in the format {"name": function name, "parameters": dictionary}.

{% for tool in ns.tools %}{{ tool | tojson(indent=4) }}

{% endfor %}{% set ns.tools = none %}{% endif %}{% if m.tool_calls %}{"name": "{{ m.tool_calls[0].function.name }}", \
"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}{% else %}{{ m.content | trim }}{% endif %}<|eot|>\
{% endfor %}{% if add_generation_prompt %}<|assistant|>

{% endif %}"""
SAID = {
    TAGGED: 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>{"name": "time", "arguments": {}}</tool_call>',
    BARE: '{"name": "weather", "parameters": {"city": "Rome"}}; {"name": "time", "parameters": {}}',
}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture(params=[TAGGED, BARE], ids=["tagged", "bare"])
def family(request: pytest.FixtureRequest, target: Target, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(target.tokenizer, "chat_template", request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def server(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Any]]:
    with served(target, tmp_path_factory.mktemp("served")) as both:
        yield both


@pytest.fixture
def client(server: tuple[Client, Any]) -> Client:
    return server[0]


def functions(calls: Any) -> list[tuple[str, Any]]:
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_a_model_calls_tools_and_goes_on_with_their_results(
    target: Target, server: tuple[Client, Any], family: str, says: Any
) -> None:
    client, service = server
    name = f"chat/{len(family)}"
    given = {"tools": [WEATHER, TIME], "tool_choice": "auto", "parallel_tool_calls": True, "max_tokens": 90}
    system = {"role": "system", "content": "You are of Rome."}
    says(SAID[family])
    asked = [system, user("How is the weather?")]
    [choice] = client.post(CHAT, messages=asked, session=name, **given)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == ("I look.\n" if family == TAGGED else None)
    assert functions(message["tool_calls"]) == [("weather", {"city": "Rome"}), ("time", {})]
    one = message | {"tool_calls": message["tool_calls"][:1]}
    result = {"role": "tool", "tool_call_id": one["tool_calls"][0]["id"], "content": "sunny, 21 C"}
    says("It is sunny.")
    whole = client.post(CHAT, messages=[*asked, one, result], **given)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "It is sunny."}
    says("It is sunny.")  # a session has what was before, and was begun with these tools
    assert client.post(CHAT, messages=[result], session=name, **given)["choices"][0] == whole["choices"][0]
    seen = target.decode(service.sessions._records[name].ids.tolist())
    assert seen.count('"description"') == 1 and "sunny, 21 C" in seen and "It is sunny." in seen
    other = WEATHER | {"function": WEATHER["function"] | {"description": "Another."}}  # type: ignore[operator]
    status, refused = client.ask("POST", CHAT, {"messages": [user("x")], "session": name, "tools": [other]})
    assert status == 400 and "began with other instructions or tools" in refused["error"]["message"]


def test_a_stream_gives_calls_at_its_end(client: Client, family: str, says: Any) -> None:
    says(SAID[family])
    events = list(client.stream(CHAT, messages=[user("x")], tools=[WEATHER, TIME], max_tokens=90))
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == ("I look.\n" if family == TAGGED else "")
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call.pop("index") for call in calls] == [0, 1]
    assert functions(calls) == [("weather", {"city": "Rome"}), ("time", {})]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls" and events[-1] == "[DONE]"


def test_without_tools_or_where_none_is_to_be_called_all_is_text(client: Client, family: str, says: Any) -> None:
    without: list[dict[str, Any]] = [{}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": []}]
    for fields in without:
        says(SAID[family])
        [choice] = client.post(CHAT, messages=[user("x")], max_tokens=90, **fields)["choices"]
        assert choice["message"] == {"role": "assistant", "content": SAID[family]} and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("Sunny.", "Sunny.", 0), (' {"name": "other", "arguments": {}}', None, 0), ('[{"name": "weather"}]', None, 0),
        ('[{"name": "weather", "arguments": {}}, {"name": "weather", "parameters": {"a": [1]}}]', "", 2),
        ('<tool_call>{"name": "weather", "arguments": {}}', "", 1), ("a <tool_call>{</tool_call>", None, 0),
        ('<tool_call>{"name": "weather", "arguments": {}}</tool_call> and <tool_call>x</tool_call>', None, 0),
        ("a < b, <tool", None, 0), ("[1, 2]", None, 0), ("{" * 9000, None, 0), ("[" * 9000, None, 0), ("", "", 0),
    ],
)  # fmt: skip
def test_what_is_no_call_is_text(text: str, shown: str | None, calls: int) -> None:
    for step in (1, 7, len(text) or 1):
        reader = CallReader(["weather"])
        pieces = [reader.add(text[at : at + step]) for at in range(0, len(text), step)]
        end, found = reader.end()
        assert "".join([*pieces, end]) == (text if shown is None else shown) and len(found) == calls


def test_tools_that_cannot_be_are_refused(client: Client, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(fields: Any, path: str = CHAT) -> str:
        status, found = client.ask("POST", path, {"messages": [user("x")]} | fields)
        assert status == 400
        return str(found["error"]["message"])

    for tools in ("x", [1], [{"type": "function"}], [{"function": {"name": 5}}], [WEATHER] * 129):
        assert "tools" in refused({"tools": tools})
    assert "tools of a chat" in refused({"tools": [WEATHER], "prompt": "x", "messages": None}, "/v1/completions")
    assert "tool_choice is not supported" in refused({"tools": [WEATHER], "tool_choice": "required"})
    assert "response_format is not supported" in refused({"response_format": {"type": "json_object"}})
    assert "functions is not supported" in refused({"functions": [WEATHER["function"]]})
    call: Any = {"function": {"name": "weather", "arguments": "{}"}}
    broken: Any = {"function": {"name": "weather", "arguments": "{"}}
    wrong: list[Any] = ["x", [{}], [broken], [{"function": None}], [call | {"id": []}]]
    for calls in wrong:
        assert "tool_calls" in refused({"messages": [user("x"), {"role": "assistant", "tool_calls": calls}]})
    assert "tool_call_id" in refused({"messages": [{"role": "tool", "content": "x", "tool_call_id": []}]})
    monkeypatch.setattr(target.tokenizer, "chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert "writes no tools" in refused({"tools": [WEATHER]})


def test_many_tools_are_written_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many a request names, others do not wait for as many renderings of all of them."""
    written, inner = list[int](), reply_text._written

    def counted(target: Target, chat: Any, tools: Any, **options: Any) -> str:
        written.append(len(tools))
        return inner(target, chat, tools, **options)

    monkeypatch.setattr(target.tokenizer, "chat_template", TAGGED)
    monkeypatch.setattr(reply_text, "_written", counted)
    tools = [{"type": "function", "function": {"name": f"tool{n}", "parameters": {}}} for n in range(128)]
    message = [{"role": "user", "content": "Hi"}]
    begun = reply_text.chat_ids(target, message, [], tools)
    assert written.count(128) == 1
    reply_text.chat_ids(target, message, [*begun, *sorted(target.eos_ids)[:1]], tools)
    assert written.count(128) <= 5
