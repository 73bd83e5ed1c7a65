"""What an agent says of its work while it works."""

import io
from itertools import groupby

import pytest
from rich.console import Console

from agentkv.agent import Agent
from agentkv.models.local import LocalModel
from agentkv.progress import Progress
from agentkv.status_line import StatusLine
from agentkv_env.actions import Action
from agentkv_env.session import Session


@pytest.mark.browser
def test_a_listener_hears_every_phase_with_its_tokens(
    session: Session, tiny_model: LocalModel, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[Progress] = []
    agent = Agent(tiny_model, "full", on_progress=heard.append)
    scroll = Action("scroll", direction="down")
    episode = agent.run(session, "goal", max_steps=2, before_action=lambda *_: scroll)
    # where the disk has no kernels, they are compiled in the middle of any phase
    told = [progress.phase for progress in heard if progress.phase != "compiling"]
    phases = [phase for phase, _ in groupby(told)]
    assert phases == ["looking", "reading", "writing", "acting"] * 2
    first = episode.steps[0]
    reading = [progress for progress in heard if progress.phase == "reading"]
    assert reading[0] == Progress("reading", 0, first.num_tokens_in)
    written = [progress.done for progress in heard if progress.phase == "writing"]
    assert max(written) == max(step.num_tokens_out for step in episode.steps)
    assert capfd.readouterr() == ("", "")  # nothing is printed for an embedder


def test_plain_lines_name_what_takes_long_and_nothing_else() -> None:
    console = Console(file=io.StringIO(), width=80)
    with StatusLine(console) as status:
        status(Progress("converting", 0, 1000, "tiny.gguf"))
        status(Progress("converting", 500, 1000, "tiny.gguf"))
        status(Progress("loading", name="nano"))
        for done in range(3):
            status(Progress("compiling", done))
        status(Progress("looking"))
        status(Progress("compiling", 3))
        status(Progress("reading", 0, 20))
        for done in (0, 512, 1158):
            status(Progress("reading", done, 1158))
        status(Progress("writing", 1))
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "agentkv: converting tiny.gguf: 0 %",
        "agentkv: loading nano",
        "agentkv: compiling kernels, once on this machine (1 to 4 minutes)",
        "agentkv: reading 1,158 tokens",
    ]


def test_a_terminal_has_one_line_that_is_gone_while_others_are_written() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=40)
    with StatusLine(console) as status:
        status(Progress("reading", 0, 1158))
        with status.aside():
            console.print("a step")
        status(Progress("writing", 7))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.index("reading 1,158 tokens") < shown.index("a step")
    assert "\x1b[2K" in shown[: shown.index("a step")]
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")  # the cursor comes back
