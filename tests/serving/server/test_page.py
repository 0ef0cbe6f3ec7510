"""The page of a server in a real browser: sessions stand in their tier, move, and no name is taken for markup."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
playwright = pytest.importorskip("playwright.sync_api")

from pltz.models.target.target import Target
from tests.serving.server.opened import served

NAME = "<img src=x onerror=alert(1)>"


@pytest.mark.slow
def test_sessions_move_between_tiers_in_a_browser(tmp_path: Path) -> None:
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser_path is None:
        pytest.skip("no chromium here")
    target = Target.load("mini-llama", dtype="float32")
    with served(target, tmp_path) as (client, _), playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        trouble: list[str] = []
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append("dialog"))
        page.on("console", lambda line: trouble.append(line.text) if line.type == "error" else None)
        fixed = {"prompt": "Once upon a time", "max_tokens": 3}
        client.post("/v1/completions", **fixed, session="chat/1")
        client.post("/v1/completions", **fixed, session=NAME)
        page.goto(f"http://127.0.0.1:{client.port}/")
        page.wait_for_selector("#hot li >> text=chat/1")
        assert page.locator("#hot li").count() == 2 and page.locator("img").count() == 0
        assert NAME in page.locator("#hot").inner_text() and page.locator("#hot h2 span").inner_text() == "2"
        client.post("/freeze", session="chat/1")
        page.wait_for_selector("#cold li.moved >> text=chat/1")
        assert page.locator("#hot li").count() == 1
        client.post("/thaw", session="chat/1")
        page.wait_for_selector("#hot li >> text=chat/1")
        assert page.locator("#cold li").count() == 0 and "2 sessions" in page.locator("#state").inner_text()
        browser.close()
    assert [line for line in trouble if "favicon" not in line and "404" not in line] == []
