"""An agent logs in with a secret that no model, record or message ever holds."""

import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page as PlaywrightPage
from tokenizers import Tokenizer

from agentkv import Agent, Secret, UnknownSecret
from agentkv.dialog.grammar import Grammar
from agentkv.models.model import Reply
from agentkv.models.scripted import resolve
from agentkv.trace import TraceWriter
from agentkv_env.page import Page

VALUE = "qu&et <otter> 99"
GOAL = "Log in as anna with <secret:club>."


@dataclass
class Watched:
    """Replays actions and keeps all that it is shown."""

    lines: list[str]
    shown: list[object] = field(default_factory=list)
    name: str = "watched"

    def begin(self, goal: str, *, seed: int = 0) -> "Watched":
        self.shown.append(goal)
        return self

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        self.shown += [asdict(page), note]
        line = self.lines.pop(0)
        return Reply(text=resolve(line, page) if ": " in line else f"```{line}```")


@pytest.mark.browser
def test_a_secret_reaches_the_page_and_nothing_else(
    callers_page: PlaywrightPage, site: str, tmp_path: Path
) -> None:
    page, path = callers_page, tmp_path / "trace.jsonl"
    page.goto(f"{site}/sign-in")
    page.context.tracing.start()
    secrets = {"club": Secret(VALUE, [site.removeprefix("http://")])}
    model = Watched(
        [
            "type [textbox: Password] [<secret:club>] [0]",
            "type [textbox: Name] [<secret:club>] [0]",
            "type [textbox: Name] [<secret:bank>] [0]",
            "stop [I typed <secret:club>]",
        ]
    )
    with TraceWriter(path, head={"goal": GOAL}) as trace:
        episode = Agent(model).run(page, GOAL, named_secrets=secrets, on_step=trace.step)
        trace.end(episode)
    page.context.tracing.stop(path=tmp_path / "playwright.zip")
    assert page.get_by_label("Password").input_value() == VALUE
    assert page.get_by_label("Name").input_value() == VALUE
    assert episode.steps[2].error == "there is no <secret:bank>; there are: <secret:club>"
    assert [step.action[-18:] for step in episode.steps[:2]] == ["[<secret:club>] [0]"[-18:]] * 2
    with zipfile.ZipFile(tmp_path / "playwright.zip") as recorded:
        recorded_texts = [
            recorded.read(name).decode(errors="replace") for name in recorded.namelist()
        ]
    steps = list(map(asdict, episode.steps))
    for text in (repr(model.shown), repr(steps), path.read_text(), *recorded_texts):
        assert "otter" not in text
    assert "'value': '<secret:club>'" in repr(model.shown)


@pytest.mark.browser
def test_a_goal_with_an_unknown_secret_is_refused_before_the_model_begins(
    callers_page: PlaywrightPage, site: str
) -> None:
    callers_page.goto(f"{site}/sign-in")
    model = Watched(["stop []"])
    with pytest.raises(UnknownSecret, match="no <secret:club>; no secret was given"):
        Agent(model).run(callers_page, GOAL)
    assert not model.shown


def test_the_grammar_lets_a_model_write_a_secret_and_copy_it_from_the_goal(
    plain_tokenizer: Tokenizer, page: Page
) -> None:
    grammar = Grammar(plain_tokenizer, end_id=3)
    for quoted in ("", "from <secret:club>\n"):
        reply = f"at Search\n{quoted}```type [5] [<secret:club>] [1]```"
        matcher = grammar.start(page, GOAL)
        for token in plain_tokenizer.encode(reply).ids:
            assert matcher.allowed()[token], reply
            matcher.consume([token])
