"""`agentkv replay`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from agentkv_tasks.cli.options import for_people

if TYPE_CHECKING:
    from agentkv.trace import Step


def replay(
    place: Annotated[
        Path, typer.Argument(help="Folder (--out) of a run, or a trace.", metavar="DIR")
    ],
    key: Annotated[
        str | None, typer.Argument(help="Beginning of the trace's name, such as 012-full-0.")
    ] = None,
) -> None:
    """Replay a recorded episode without its model, and score it again."""
    with for_people() as console:
        from agentkv_tasks.run.act_terminal import print_step
        from agentkv_tasks.run.replay import find_trace, has_masks, page_difference
        from agentkv_tasks.run.replay import replay as replay_episode

        different: list[int] = []

        def compare(before: "Step", now: "Step") -> None:
            print_step(console, now)
            if (before.url, before.error) != (now.url, now.error):
                line = f"    was: {before.url} {before.error}"
                console.print(Text(line, style="yellow"), soft_wrap=True)
            difference = page_difference(before.observation, now.observation)
            if not difference:
                return
            different.append(now.index + 1)
            line = f"    the page of step {now.index + 1} differs from the recorded one"
            console.print(Text(line, style="yellow"), soft_wrap=True)
            for line in difference if len(different) == 1 else ():
                console.print(Text(f"      {line}"), soft_wrap=True)

        trace, episode, score = replay_episode(find_trace(place, key), on_step=compare)
        if has_masks(trace):
            note = "the trace holds no secrets; *** was typed in their place"
            console.print(Text(note, style="yellow"), soft_wrap=True)
        value = "none" if score is None else f"{score.value:g}"
        reason = f" ({score.reason})" if score is not None and score.reason else ""
        console.print(Text(f"{episode.status}, score {value}{reason}"), soft_wrap=True)
        if different:
            steps = ", ".join(map(str, different))
            many = "s" * (len(different) > 1)
            console.print(Text(f"the page differed at step{many} {steps}"), soft_wrap=True)
