"""Responses: each is a session that others go on from, in the wire form of OpenAI's client."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from pltz.models.target.target import Target
from tests.serving.eviction.opened import eventually
from tests.serving.server.opened import Client, served
from tests.serving.server.test_tools import SAID, TAGGED, TIME, WEATHER, functions

PATH = "/v1/responses"
TOOLS = [{"type": "function", **tool["function"]} for tool in (WEATHER, TIME)]  # type: ignore[dict-item]


def text_of(response: Any) -> str:
    [item] = response["output"]
    [part] = item["content"]
    assert (item["type"], part["type"], item["status"]) == ("message", "output_text", response["status"])
    return str(part["text"])


def test_responses_are_gone_on_from_by_several_also_from_the_archive(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Any
) -> None:
    monkeypatch.setattr(target.tokenizer, "chat_template", TAGGED)

    def post(client: Client, **body: Any) -> Any:
        return client.post(PATH, model="mini", **body)

    with served(target, tmp_path) as (client, service):
        says("Yes.")
        first = post(client, input="Is it sunny? " * 9, instructions="You are of Rome.", tools=TOOLS)
        assert first["status"] == "completed" and text_of(first) == "Yes." and first["store"]
        parts = [{"type": "input_text", "text": "And "}, {"type": "input_text", "text": "now?"}]
        told = []
        for answer in ("No.", "Perhaps."):
            says(answer)
            more = {"input": [{"role": "user", "content": parts}], "instructions": "You are of Rome."}
            told.append(post(client, previous_response_id=first["id"], tools=TOOLS, **more))
            assert text_of(told[-1]) == answer and told[-1]["previous_response_id"] == first["id"]
        known: Any = service.sessions._records
        ids = [known[one["id"]].ids.tolist() for one in (first, *told)]
        assert all(one[: len(ids[0])] == ids[0] for one in ids) and ids[1] != ids[2]
        said = target.decode(ids[2])
        assert said.count("Rome") == said.count("# Tools") == 1 and said.count("And now?") == 1
        cached = told[0]["usage"]["input_tokens_details"]["cached_tokens"]
        assert len(ids[0]) - 17 <= cached <= len(ids[0])
        others = {"instructions": "Others.", "previous_response_id": first["id"]}
        status, refused = client.ask("POST", PATH, more | others)
        assert status == 400 and "began with other instructions" in refused["error"]["message"]
        archive = service.sessions._archive
        says("Gone.")
        alone = post(client, input="x", store=False, previous_response_id=told[1]["id"])
        assert text_of(alone) == "Gone." and client.ask("GET", f"/sessions/{alone['id']}")[0] == 404
        assert client.post("/freeze", session=told[0]["id"])["tokens"] == len(ids[1])
        assert {version.name for version in archive.directory.ls()} == {one["id"] for one in (first, *told)}
    with served(target, tmp_path) as (client, service):
        says("Back.")
        back = post(client, input="x", previous_response_id=told[0]["id"])
        known = service.sessions._records
        assert text_of(back) == "Back." and known[back["id"]].ids[: len(ids[1])].tolist() == ids[1]


@pytest.fixture(scope="module")
def client(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with served(target, tmp_path_factory.mktemp("served")) as (client, _):
        yield client


def test_a_stream_brings_a_response_and_calls_whose_results_go_on(
    target: Target, client: Client, monkeypatch: pytest.MonkeyPatch, says: Any
) -> None:
    monkeypatch.setattr(target.tokenizer, "chat_template", TAGGED)
    says(SAID[TAGGED])
    events = list(client.stream(PATH, input="x", tools=TOOLS))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events if "delta" not in event["type"]]
    item = ["output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"]
    call = ["output_item.added", "function_call_arguments.done", "output_item.done"]
    assert kinds == ["created", "in_progress", *item, *call, *call, "completed"]
    whole = events[-1]["response"]
    assert whole["id"] == events[0]["response"]["id"] and whole["output"][0]["content"][0]["text"] == "I look.\n"
    calls = whole["output"][1:]
    assert [event["item"] for event in events if event["type"].endswith("item.done")][1:] == calls
    as_chat = [{"id": one["call_id"], "type": "function", "function": one} for one in calls]
    assert functions(as_chat) == [("weather", {"city": "Rome"}), ("time", {})]
    says("Sunny.")
    results = [{"type": "function_call_output", "call_id": one["call_id"], "output": "21"} for one in calls]
    assert text_of(client.post(PATH, input=results, previous_response_id=whole["id"])) == "Sunny."
    says("Sunny.")
    asked = [{"role": "user", "content": "x"}, *calls, *results]
    assert text_of(client.post(PATH, input=asked, tools=TOOLS, store=False)) == "Sunny."


def test_a_response_that_is_cut_or_fails_says_so(client: Client, monkeypatch: pytest.MonkeyPatch, says: Any) -> None:
    says("One two three four five.")
    cut = client.post(PATH, input="x", max_output_tokens=2)
    assert cut["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert text_of(cut)
    monkeypatch.setattr("pltz.serving.server.scheduler.choose", lambda *_: 1 / 0)
    last = list(client.stream(PATH, input="x"))[-1]
    assert last["type"] == "response.failed" and last["response"]["error"]["message"]


def test_what_a_response_cannot_have_is_refused_by_name(client: Client) -> None:
    for name, value in (
        ("background", True), ("include", ["file_search_call"]), ("truncation", "auto"), ("prompt", {"id": "x"}),
        ("conversation", "conv_1"), ("text", {"format": {"type": "json_object"}}), ("reasoning", {"effort": "low"}),
        ("tools", 5), ("tools", [{"type": "web_search"}]), ("input", None), ("input", [{"type": "reasoning"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image"}]}]), ("store", 1), ("instructions", 5),
    ):  # fmt: skip
        status, found = client.ask("POST", PATH, {"input": "x"} | {name: value})
        assert status == 400 and (name in found["error"]["message"] or name == "input"), (name, found)
    assert client.ask("POST", PATH, {"input": "x", "previous_response_id": "resp_none"})[0] == 404
    assert client.ask("POST", PATH, [])[0] == 400
    taken = {"include": [], "truncation": "disabled", "text": {"format": {"type": "text"}}, "background": False}
    assert client.post(PATH, input="x", max_output_tokens=1, **taken)["model"] == "mini"
    assert eventually(lambda: client.ask("GET", "/health")[0] == 200, 60)
