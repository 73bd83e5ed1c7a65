"""`agentkv record`: a person shows in a browser how a goal is reached, and decides what is kept."""

import contextlib
import select
import signal
import sys
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from agentkv.demonstration import Demonstration, Shown
from agentkv.files import require_file
from agentkv.recordings import RecordingFile, read_recordings, require_training_seed
from agentkv_env.errors import BrowserGone
from agentkv_env.named_secrets import NamedSecrets
from agentkv_env.person import Missed, PersonLeft
from agentkv_tasks.run.act import ActPlace, open_session
from agentkv_tasks.settings import RunSettings

_POLL_S = 0.05


class NoTerminal(ValueError):
    """Nobody can be asked."""


class DemonstrationTerminal:
    """Prints a demonstration while it goes on, and asks what becomes of it.

    Args:
        answer: answer to the goal; None: the person is asked, or there is none.
        asks: whether the person is asked anything; otherwise complete episodes are kept.
        keeps_incomplete: whether incomplete ones are kept too if nobody is asked.

    Raises:
        NoTerminal: the person is to be asked, and standard input is no terminal.
    """

    def __init__(
        self, console: Console, *, answer: str | None, asks: bool, keeps_incomplete: bool
    ) -> None:
        if asks and not sys.stdin.isatty():
            raise NoTerminal(
                "you are asked for the answer and whether to keep the episode, and standard input "
                "is no terminal; run it on one, or give --yes, and the answer with --answer"
            )
        self._console = console
        self._answer = answer
        self._asks = asks
        self._keeps_incomplete = keeps_incomplete
        self._is_interrupted = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block, Ctrl-C is the end of the demonstration and raises nothing."""

        def note(number: int, frame: FrameType | None) -> None:
            self._is_interrupted = True

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @property
    def finishing_keys(self) -> str:
        """The keys that finish, as a person reads them. A script's input may end at once, so that
        Enter finishes only where questions are asked."""
        return "Enter or Ctrl-C" if self._asks else "Ctrl-C"

    @property
    def is_finished(self) -> bool:
        """True once the person has pressed a key in the terminal that finishes."""
        if self._is_interrupted:
            return True
        if not self._asks or not select.select([sys.stdin], [], [], 0)[0]:
            return False
        sys.stdin.readline()
        return True

    def say(self, line: str, style: str = "") -> None:
        """Print a line."""
        self._console.print(Text(line, style=style), soft_wrap=True)

    def show(self, lines: Sequence[Shown]) -> None:
        """Print what the person did."""
        for each in lines:
            if each.number is None:
                self.say(each.text, "yellow")
            else:
                self.say(f"{each.number} {each.text}")

    def ask_answer(self) -> str:
        """Return the answer to the goal; empty for none."""
        if self._answer is not None or not self._asks:
            return self._answer or ""
        return self._ask("answer to the goal, empty for none: ")

    def is_kept(self, num_steps: int, missed: Sequence[Missed]) -> bool:
        """Return whether the person, or an option, wants to keep the episode."""
        actions = f"{num_steps} action{'s' * (num_steps != 1)}"
        if missed:
            self.say(f"{actions}; not in it, so that a model would learn to leave them out:")
            for each in missed:
                self.say(f"    {each.what}: {each.reason}", "yellow")
        if not self._asks:
            if missed and not self._keeps_incomplete:
                self.say("not kept, because it is incomplete; --incomplete keeps it nevertheless")
            return not missed or self._keeps_incomplete
        question = "keep the incomplete episode" if missed else f"keep the episode of {actions}"
        while True:
            match self._ask(f"{question}? y = yes, n = no: ").lower():
                case "y" | "yes":
                    return True
                case "n" | "no" | "":
                    return False

    def _ask(self, question: str) -> str:
        # what was typed before the question is no answer to it
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        self._console.print(Text(question), end="")
        written = sys.stdin.readline()
        if not written:  # the end of the input
            raise KeyboardInterrupt
        return written.strip()


def demonstrate(
    settings: RunSettings,
    place: ActPlace,
    goal: str,
    path: Path,
    terminal: DemonstrationTerminal,
) -> bool:
    """Record an episode that a person plays, and return whether it was kept.

    Args:
        goal: the task in plain words; `<secret:name>` stands for a secret.
        path: the file of recordings, which is continued.

    Raises:
        RecordingError: a ValueError; `path` is no file of recordings, the embedded world measures
            models, or the episode cannot be recorded at all.
        UnknownSecret: a ValueError; the goal names a secret that nobody gave.
        OutputPathError: a ValueError; `path` cannot be written.
        BrowserMissing: no browser was found, or none that can show its window.
        CannotAttach: a ValueError; no browser of the user's can be attached to.
        ActionFailed: a ValueError; the start page did not load.
        BrowserGone: the browser was lost before anything was done.
    """
    world_seed = settings.world_seed if place.is_embedded else None
    if world_seed is not None:
        require_training_seed(world_seed, f"{place.url} would be recorded in")
    NamedSecrets(place.secrets).require(goal)
    require_file(path, "--to")
    assert place.url is not None, "a demonstration begins at an address"
    for _ in read_recordings(path) if path.exists() else ():
        pass  # it is a file of recordings, which is better known before the work than after it
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminal.watching())
        session = stack.enter_context(open_session(settings, place))
        demonstration = Demonstration(session, goal)
        if session.page.url != place.url:  # a tab of the user's may show it
            session.open(place.url)
        demonstration.begin()
        keys = terminal.finishing_keys
        terminal.say(f"recording; close the window, or press {keys} here, to finish")
        with contextlib.suppress(PersonLeft, BrowserGone):
            while not terminal.is_finished:
                terminal.show(demonstration.wait(_POLL_S))
            terminal.show(demonstration.finish())
    answer = session.secrets.masks.mask(terminal.ask_answer())
    demonstration.recording(answer, world_seed=world_seed)  # whether it can be recorded at all
    if not terminal.is_kept(demonstration.num_steps, demonstration.missed):
        terminal.say("nothing was written")
        return False
    with RecordingFile(path) as file:
        demonstration.keep(file, answer, world_seed=world_seed)
    terminal.say(f"{path}: {len(file.keys)} episode{'s' * (len(file.keys) != 1)}")
    return True
