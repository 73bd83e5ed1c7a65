"""`agentkv show --web` writes one file in which an episode is read step by step, in a browser."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.agentkv.serve.test_page import HOSTILE, Look
from tests.agentkv.serve.test_page import look as look
from tests.tasks.test_show import STEP, STEPS, call, record

LOOKING = (*STEPS[:2], replace(STEPS[2], token_looks=(0, 12, 0, 0, 40)))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The page of an episode of three steps, in a folder that has another one too."""
    record(tmp_path, "003-full-0-x", LOOKING)
    record(tmp_path, "004-full-0-y", LOOKING[:1])
    result = call(tmp_path, "003-full", "--web", tmp_path / "new" / "one.html")
    assert result.exit_code == 0 and "003-full-0-x: written to" in result.stdout
    return tmp_path / "new" / "one.html"


def data_of(page: Path) -> Any:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)
    assert found is not None
    return json.loads(found[1])


def test_the_file_says_what_each_step_changed(out: Path) -> None:
    data = data_of(out)
    assert data["goal"] == "What costs the kayak?" and "stopped after 3 steps" in data["ending"]
    first, second, third = data["steps"]
    assert first["pieces"][2] == "link Blue Kayak [3]\n" and first["gone_in"] == [1, 1, 2, None]
    assert second["levels"]["page 0"] == {"name": "page 1", "levels": [0, 0, 4, 4]}
    assert third["levels"]["goal"]["levels"] == [0] and third["has_cold"]
    assert [each.get("confidence") for each in first["tokens"]] == [None, 0.93, 0.121, None, 0.5]
    assert [each.get("look") for each in third["tokens"]][1] == {"fetched": 12}


@pytest.mark.browser
def test_a_browser_shows_the_episode_after_the_step_that_is_chosen(out: Path, look: Look) -> None:
    def read(page: Page) -> None:
        page.goto(out.as_uri())
        expect(page.get_by_role("heading", name="What costs the kayak?")).to_be_visible()
        pieces = page.get_by_role("group", name="Page 1").locator("span")
        step = page.get_by_label("After step")

        def held() -> list[str]:
            titles: list[str] = pieces.evaluate_all("all => all.map((each) => each.title)")
            return [each.partition(" of it")[0] for each in titles]

        assert held() == ["nothing", "nothing", "nothing", "all"]
        expect(pieces.nth(2)).to_have_attribute("title", re.compile("left in step 3$"))
        assert "is-cold" in (pieces.nth(2).get_attribute("class") or "")
        reply = page.get_by_role("group", name="Reply 3").locator("span")
        expect(reply.nth(1)).to_have_attribute("title", re.compile("fetched 12 entries"))
        expect(page.locator("#facts")).to_contain_text("goal: nothing of it is held")
        step.focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#step-title")).to_have_text("type [5] [kayak] [1]")
        assert held() == ["nothing", "nothing", "all", "all"]
        assert "gone" in (pieces.nth(0).get_attribute("class") or "")
        page.keyboard.press("ArrowLeft")
        assert held() == ["all"] * 4
        expect(page.get_by_role("group", name="Page 2")).to_have_count(0)
        pieces.first.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#held-detail")).to_contain_text("title Shop")

    assert look(read) == [out.as_uri()]  # it loads nothing, and no script fails


@pytest.mark.browser
def test_hostile_text_of_pages_and_replies_runs_nothing(tmp_path: Path, look: Look) -> None:
    text = f"{HOSTILE}\n<!--<script>&lt;\u2028"
    hostile = replace(
        STEP, url=text, observation=text, reply=text, action=text, error=text, note=text,
        token_ends=(7, len(text)), confidences=(0.1, None), piece_ends=(len(text),),
        held={"page 0": "0", HOSTILE: "0"},
    )  # fmt: skip
    record(tmp_path, "one", (hostile,), goal=text, policy=text)
    assert call(tmp_path, "one", "--web", tmp_path / "one.html").exit_code == 0

    def read(page: Page) -> None:
        page.goto((tmp_path / "one.html").as_uri())
        expect(page.get_by_role("group", name="Page 1")).to_contain_text("<img src=x onerror=")
        expect(page.locator("#facts")).to_contain_text("window.hit")
        assert page.evaluate("window.hit") is None
        assert page.locator("body script").count() == 2 and page.locator("img, a").count() == 0

    assert look(read) == [(tmp_path / "one.html").as_uri()]


def test_an_episode_without_a_cache_and_absurd_places_is_written_all_the_same(
    tmp_path: Path,
) -> None:
    absurd = replace(
        STEP, token_ends=(-5, 10**9, 2), confidences=(float("nan"), -3.0, 1e9), num_evicted=-7,
        token_looks=(-1, 5), piece_ends=(10**9, -1), turn=-4,
        held={"page -4": "\u0663x", "page 9": "", "": "0"},
    )  # fmt: skip
    bare = replace(STEP, token_ends=(), confidences=(), piece_ends=(), seen_tokens=0)
    for stem, steps in (("absurd", (absurd, replace(absurd, index=1))), ("bare", (bare,))):
        record(tmp_path, stem, steps)
        page = tmp_path / f"{stem}.html"
        assert call(tmp_path, stem, "--web", page).exit_code == 0
        assert len(data_of(page)["steps"]) == len(steps)
    assert data_of(tmp_path / "bare.html")["is_known"] is False
    assert data_of(tmp_path / "bare.html")["steps"][0]["tokens"] == [{"text": STEP.reply}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--web", "x.html"], "--step, --against and --web are about one task"),
        (["003-full", "--step", "1", "--web", "x.html"], "--web shows all steps of one episode"),
        (["003-full", "--web", "/proc/x.html"], "--web /proc/x.html"),
        (["003-full", "--web", "/"], "not a regular file"),
    ],
)
def test_a_file_that_cannot_be_written_is_named(
    out: Path, arguments: list[str], message: str
) -> None:
    result = call(out.parents[1], *arguments)
    assert result.exit_code == 2 and message in result.stderr
    assert not (Path.cwd() / "x.html").exists()
