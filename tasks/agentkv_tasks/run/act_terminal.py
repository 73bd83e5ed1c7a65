"""`agentkv act` on the terminal: its steps, its questions before an action, and its end."""

import json
import sys
import termios
from typing import Literal

from rich.console import Console
from rich.text import Text

from agentkv.episode import typed_secrets
from agentkv.status_line import StatusLine
from agentkv.terminal import human_rate, plain
from agentkv.trace import Episode, Step
from agentkv_env.actions import Action, render
from agentkv_env.page import Page
from agentkv_tasks.run.act import Verdict

Brake = Literal["none", "confirm", "dry-run"]
"""Whether actions that may change something are carried out, asked about, or only shown."""

_FIELDS = (
    *("index", "url", "action", "element", "error", "seconds", "seen_tokens", "cache_bytes"),
    *("num_tokens_in", "num_tokens_out", "prefill_s", "decode_s"),
)
"""Fields of a step in JSON."""
_QUESTION = "do it? y = yes, n = no, a = yes to all, q = quit: "


class NoTerminal(ValueError):
    """Nobody can be asked."""


class ActTerminal:
    """Prints an episode while it is played.

    Args:
        console: writes to stdout.
        asking: writes to stderr.
        as_json: print a line of JSON for each step and for the end.
    """

    def __init__(
        self, console: Console, asking: Console, status: StatusLine, *, brake: Brake, as_json: bool
    ) -> None:
        if brake == "confirm" and not (sys.stdin.isatty() and asking.is_terminal):
            raise NoTerminal(
                "--confirm asks on a terminal, and standard input or error is none; run it on a "
                "terminal, or use --dry-run, which asks nothing"
            )
        self._console, self._asking, self._status = console, asking, status
        self._brake, self._as_json = brake, as_json
        self._is_all_allowed = False
        self._stopped_before = ""
        """The action that was not carried out; empty if the agent went on."""

    def step(self, step: Step) -> None:
        """Print a step that is over."""
        self._status.rest()
        with self._status.aside():
            if self._as_json:
                line = json.dumps({name: getattr(step, name) for name in _FIELDS})
                print(plain(line), flush=True)
            else:
                print_step(self._console, step)

    def judge(self, page: Page, action: Action) -> Verdict:
        """Say whether an action that may change something is carried out."""
        if self._brake == "none" or self._is_all_allowed:
            return "yes"
        shown = describe(page, action)
        if self._brake == "dry-run":
            self._stopped_before = shown
            return "end"
        with self._status.aside():
            self._asking.print(Text(f"the agent wants to {shown}", style="bold"), soft_wrap=True)
            self._asking.print(Text(f"    on {page.url}", style="dim"), soft_wrap=True)
            verdict = self._ask()
        if verdict == "end":
            self._stopped_before = shown
        return verdict

    def _ask(self) -> Verdict:
        # what was typed before the question is no answer to it
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        while True:
            self._asking.print(Text(_QUESTION), end="")
            written = sys.stdin.readline()
            if not written:  # the end of the input
                self._asking.print()
            match written.strip().lower():
                case "y" | "yes":
                    return "yes"
                case "n" | "no":
                    return "no"
                case "a" | "all":
                    self._is_all_allowed = True
                    return "yes"
                case "q" | "quit":
                    return "end"
                case _ if not written:
                    return "end"

    def end(self, episode: Episode) -> None:
        """Print how the episode ended."""
        answer = episode.secrets.mask(episode.answer)
        if self._as_json:
            end: dict[str, object] = {
                "status": episode.status,
                "answer": answer,
                "error": episode.error,
            }
            end |= {"success": episode.success, "advice": episode.advice}
            if self._stopped_before:
                end |= {"not_done": self._stopped_before}
            print(plain(json.dumps({**end, "num_steps": len(episode.steps)})), flush=True)
            return
        num = len(episode.steps)
        said = f", answer: {answer}" if answer else ""
        self._console.print(Text(f"{episode.status} after {num} step{'s' * (num != 1)}{said}"))
        if self._stopped_before:
            why = "dry run" if self._brake == "dry-run" else "you quit"
            line = f"{why}: the next action was not carried out: {self._stopped_before}"
            self._console.print(Text(line), soft_wrap=True)
        if episode.error:
            self._console.print(Text(episode.error, style="red"), soft_wrap=True)
        if episode.advice:
            self._console.print(Text(episode.advice, style="yellow"), soft_wrap=True)

    def succeeded(self, episode: Episode) -> bool:
        """Return whether the agent stopped by itself, or a dry run came to an action."""
        is_dry_end = self._brake == "dry-run" and bool(self._stopped_before)
        return episode.status == "stopped" or is_dry_end


def describe(page: Page, action: Action) -> str:
    """Return an action with the names of its elements, without what it types into passwords."""
    text = render(action)
    for secret in typed_secrets(page, action):
        text = text.replace(secret, "***")
    named = [page.element(id) for id in (action.element_id, action.target_id) if id is not None]
    names = [f"{node.role} {node.name[:80]!r}" for node in named if node is not None]
    return f"{text}  ({' onto '.join(names)})" if names else text


def print_step(console: Console, step: Step) -> None:
    """Print a step: its action with the element, its page, and how long the model took."""
    action = step.action or "(no readable action)"
    element = f"  {step.element}" if step.element else ""
    console.print(Text(f"{step.index + 1:>3} {action}{element}"), soft_wrap=True)
    console.print(Text(f"    {step.url}", style="dim"), soft_wrap=True)
    if step.decode_s:
        line = f"    read {step.num_tokens_in:,} tokens in {step.prefill_s:.1f} s, wrote "
        line += f"{step.num_tokens_out} in {step.decode_s:.1f} s"
        line += f" ({human_rate(step.num_tokens_out, step.decode_s)})"
        console.print(Text(line, style="dim"), soft_wrap=True)
    if step.error:
        console.print(Text(f"    {step.error}", style="red"), soft_wrap=True)
