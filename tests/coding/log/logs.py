"""Small logs in the forms of the agents, made by hand: the same keys as real ones, no content of anyone."""

import hashlib
import json
import uuid
from typing import Any

from pltz.models.session.spelling import spell

NOISE = b"".join(hashlib.sha256(b"noise %d" % n).digest() for n in range(4))
CODE = "def area(width, height):\n    # of a rectangle\n    return width * height\n\n\nprint(area(3, 4))\n"


def name(number: int) -> str:
    """Return the UUID of a number."""
    return str(uuid.UUID(bytes=hashlib.sha256(b"%d" % number).digest()[:16], version=4))


def digits(number: int, size: int) -> str:
    """Return digits of base 62."""
    table = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(table[byte % 62] for byte in hashlib.sha512(b"%d" % number).digest()[:size])


def clock(number: int) -> str:
    """Return a time some seconds after the last."""
    return f"2026-01-02T03:{number * 7 // 60:02d}:{number * 7 % 60:02d}.{number * 137 % 1000:03d}Z"


def numbered(text: str) -> str:
    """Return text with line numbers, as a reading tool shows it."""
    return "\n".join(f"{n:6d}→{line}" for n, line in enumerate(text.split("\n"), 1))


def claude() -> bytes:
    """Lines as Claude Code writes them."""
    lines: list[dict[str, Any]] = []
    for n in range(12):
        tool = f"toolu_01{digits(n // 2, 22)}"
        head = {
            "parentUuid": name(n - 1) if n else None, "isSidechain": False, "cwd": "/home/me/shapes",
            "sessionId": name(1000), "version": "2.1.42", "gitBranch": "main",
        }
        content: Any = "Please have a look at area.py, will you?"
        if n and n % 2 == 0:
            content = [{"tool_use_id": tool, "type": "tool_result", "content": numbered(CODE) + f"\n{n}"}]
        if n % 2:
            content = [{"type": "tool_use", "id": tool, "name": "Read", "input": {"file_path": f"/home/me/area{n}.py"}}]
            message: Any = {"model": "claude-x", "id": f"msg_01{digits(n, 22)}", "role": "assistant"}
            message["content"] = content
            message["usage"] = {"input_tokens": 8, "cache_read_input_tokens": 1000 + 37 * n, "output_tokens": n}
            lines.append({**head, "message": message, "type": "assistant", "uuid": name(n), "timestamp": clock(n)})
        else:
            message = {"role": "user", "content": content}
            file = {"filePath": "/home/me/area.py", "content": CODE + str(n), "numLines": 7, "startLine": 1}
            result = {"toolUseResult": {"type": "text", "file": file}} if n else {}
            rest = {"type": "user", "message": message, "uuid": name(n), "timestamp": clock(n)}
            lines.append({**head, **rest, **result})
    return b"".join(spell(line, 0).encode() + b"\n" for line in lines)


def codex() -> bytes:
    """Lines as Codex writes them."""
    lines: list[Any] = [{"timestamp": clock(0), "type": "session_meta", "payload": {"id": name(7), "cwd": "/home/me"}}]
    for n in range(1, 10):
        call = f"call_{digits(n, 24)}"
        arguments = spell({"command": ["bash", "-lc", f"sed -n '1,{n * 10}p' area.py"], "workdir": "/home/me"}, 0)
        ask: Any = {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": call}
        output = spell({"output": CODE + f"# {n}\n", "metadata": {"exit_code": 0, "duration_seconds": 0.1 * n}}, 0)
        answer: Any = {"type": "function_call_output", "call_id": call, "output": output}
        used = {"input_tokens": 5000 * n, "output_tokens": 30 * n, "total_tokens": 5030 * n}
        count: Any = {"type": "token_count", "info": {"total_token_usage": used, "model_context_window": 272000}}
        for kind, payload in (("response_item", ask), ("response_item", answer), ("event_msg", count)):
            lines.append({"timestamp": clock(n), "type": kind, "payload": payload})
    return b"".join(spell(line, 0).encode() + b"\n" for line in lines)


def opencode() -> bytes:
    """One document as OpenCode exports it."""
    start, session = 1_786_464_960_424, f"ses_00e640058ffe{digits(0, 14)}"
    messages: list[Any] = []
    for n in range(6):
        created = start + 7130 * n
        message = f"msg_{created * 4096 & (1 << 48) - 1:012x}{digits(n, 14)}"
        part = {"id": f"prt_{created * 4096 + 5000 & (1 << 48) - 1:012x}{digits(n + 50, 14)}", "sessionID": session}
        info: dict[str, Any] = {"role": "assistant", "time": {"created": created, "completed": created + 900 + n}}
        read = {"filePath": "/home/me/area.py"}
        state: dict[str, Any] = {"status": "completed", "input": read, "output": f"{CODE}{n}"}
        text: dict[str, Any] = {
            "type": "tool", "tool": "read", "state": {**state, "metadata": {"preview": f"{CODE}{n}"}},
        }
        messages.append({"info": {**info, "id": message}, "parts": [text | part | {"messageID": message}]})
    return spell({"info": {"id": session, "version": "1.18.16"}, "messages": messages}, 7).encode() + b"\n"


def gemini() -> bytes:
    """One document as Gemini CLI writes it."""
    messages: list[dict[str, Any]] = [
        {
            "id": name(n), "timestamp": clock(n), "type": "gemini" if n % 2 else "user",
            "content": f"Step {n}: </b> & then we go on as before.",
            "thoughts": [{"subject": "Area", "description": "The same thought again.", "timestamp": clock(n)}],
            "tokens": {"input": 900 + n, "output": 12, "cached": 0, "total": 912 + n},
        }
        for n in range(8)
    ]
    value = {"sessionId": name(99), "projectHash": hashlib.sha256(b"p").hexdigest(), "messages": messages}
    return spell(value, 7).encode()


def copilot() -> bytes:
    """Lines as Copilot CLI writes them."""
    lines = []
    for n in range(10):
        tool = f"toolu_01{digits(n // 2, 22)}"
        arguments = {"path": "C:\\Users\\Me\\git\\shapes\\area.py", "old_str": CODE}
        arguments["new_str"] = CODE.replace("3", str(n))
        data: dict[str, Any]
        kind, data = "tool.execution_start", {"toolCallId": tool, "toolName": "edit", "arguments": arguments}
        if n % 2:
            kind, data = ("hook.start", {"hookInvocationId": name(n + 300), "input": {"toolArgs": spell(arguments, 0)}})
        lines.append({"type": kind, "data": data, "id": name(n), "timestamp": clock(n), "parentId": name(n - 1)})
    return b"".join(spell(line, 0).encode() + b"\n" for line in lines)


def pi() -> bytes:
    """Lines as pi writes them."""
    lines = []
    for n in range(10):
        identity = hashlib.sha256(b"pi%d" % n).hexdigest()[:8]
        parent = hashlib.sha256(b"pi%d" % (n - 1)).hexdigest()[:8]
        usage = {"input": 900 + n, "output": 20, "cost": {"input": 0.00027 * n, "output": 6e-06, "total": 0.00028 * n}}
        message: dict[str, Any] = {
            "role": "assistant", "content": [{"type": "text", "text": f"Reading it, part {n}."}], "usage": usage,
        }
        message["timestamp"] = 1_784_376_958_047 + 1731 * n
        lines.append({"type": "message", "id": identity, "parentId": parent, "timestamp": clock(n), "message": message})
    return b"".join(spell(line, 0).encode() + b"\n" for line in lines)


def trajectory() -> bytes:
    """One document as mini-swe-agent writes it."""
    messages = [
        {
            "role": "tool" if n % 2 else "assistant",
            "content": f"<returncode>0</returncode>\n<output>\n{CODE}</output>\n{n}",
            "tool_call_id": f"call_{digits(n, 24)}",
            "extra": {"cost": 0.001 * n, "timestamp": 1764065160.5 + n},
        }
        for n in range(8)
    ]
    return json.dumps({"info": {"exit_status": "Submitted"}, "messages": messages}, indent=2).encode()


CLAUDE = claude()
LOGS = {
    "claude-code": CLAUDE, "codex": codex(), "opencode": opencode(), "gemini-cli": gemini(), "copilot": copilot(),
    "pi": pi(), "trajectory": trajectory(),
}
