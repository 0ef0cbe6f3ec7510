"""Talk to `pltz serve` with the standard library: two turns of a session that goes cold between them.

    pltz serve mini-llama --archive cold                  # in another shell
    python examples/serve_client.py --url http://127.0.0.1:8000

See docs/serve.md. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from typing import Any


def post(url: str, body: dict[str, Any]) -> Any:
    """Return the answer to a JSON body."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def stream(url: str, body: dict[str, Any]) -> tuple[str, Any]:
    """Return the text of a stream, and the session as it was acknowledged."""
    request = urllib.request.Request(
        url, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"}
    )
    text, session = "", None
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            text += event["choices"][0]["delta"].get("content", "")
            session = event.get("session", session)
    return text, session


def talk(url: str, name: str) -> dict[str, Any]:
    """Hold a chat of two turns, frozen between them."""
    chat = f"{url}/v1/chat/completions"
    fixed = {"session": name, "max_tokens": 24, "temperature": 0}
    first, session = stream(chat, {**fixed, "messages": [{"role": "user", "content": "Where is my order?"}]})
    frozen = post(f"{url}/freeze", {"session": name})
    more = {"messages": [{"role": "user", "content": "Thanks!"}], "session_tokens": session["tokens"]}
    second = post(chat, {**fixed, **more})
    said = [first, second["choices"][0]["message"]["content"]]
    return {"said": said, "tier": frozen["tier"], "tokens": [session["tokens"], second["session"]["tokens"]]}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Talk to pltz serve.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--session", default="example/1")
    chosen = parser.parse_args()
    print(json.dumps(talk(chosen.url, chosen.session)))


if __name__ == "__main__":
    main()
