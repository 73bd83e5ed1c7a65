"""A demonstration: a person pursues a goal in a session, and it becomes a recording to train on."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from agentkv.dialog.reply import find_quotation, label, write_free_reply, write_reply
from agentkv.recordings import RecordedStep, Recording, RecordingError, RecordingFile
from agentkv_env.actions import Action, ActionError, extract, parse, render
from agentkv_env.masking import Secrets
from agentkv_env.page import Page
from agentkv_env.person import Done, Missed, PersonEvent
from agentkv_env.session import Session


class NotWritable(ValueError):
    """No reply holds the action, such as a text with a fence in it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A line about what the person did."""

    number: int | None
    """Number of the step, from 1; None for what is not recorded."""
    text: str


class Demonstration:
    """Records what a person does in a session, which has read no page yet.

    Attributes:
        missed: what the person did and no step holds.
    """

    def __init__(self, session: Session, goal: str) -> None:
        self._goal = goal
        self._person = session.watch_person()
        self._secrets = session.secrets.masks
        self._steps: list[tuple[Page, Action]] = []
        self.missed: list[Missed] = []

    def begin(self) -> None:
        """Read the first page. What happened before is not recorded."""
        self._person.begin()

    @property
    def num_steps(self) -> int:
        """Number of actions so far."""
        return len(self._steps)

    def wait(self, seconds: float) -> list[Shown]:
        """Wait for the person, and return lines about what they have done.

        Raises:
            PersonLeft: the person has closed the browser or the last tab.
        """
        return [self._add(event) for event in self._person.wait(seconds)]

    def finish(self) -> list[Shown]:
        """Take what the person has begun, and the last page, and return lines about it."""
        return [self._add(event) for event in self._person.finish()]

    def _add(self, event: PersonEvent) -> Shown:
        if isinstance(event, Done):
            try:
                require_writable(event.action, event.page)
            except NotWritable as error:
                event = Missed(render(event.action)[:80], str(error))
        if isinstance(event, Missed):
            event = Missed(self._secrets.mask(event.what), event.reason)
            self.missed.append(event)
            return Shown(None, f"not recordable: {event.what}: {event.reason}")
        del self._steps[len(self._steps) - event.num_replaced :]
        self._steps.append((event.page, event.action))
        return Shown(len(self._steps), described(event.action, event.page))

    def recording(
        self, answer: str, *, keys: Collection[str] = (), world_seed: int | None = None
    ) -> Recording:
        """Return the episode, which ends in a stop with `answer` on the page that was read last.

        Args:
            answer: answer to the goal; empty for none.
            keys: keys that the file of recordings has already.
            world_seed: seed of the embedded world; None for other sites.

        Raises:
            RecordingError: the person did nothing and gave no answer, the page after the last
                action was not read, no reply can hold the answer, or the pages hold a password
                that was typed.
        """
        if not self._steps and not answer:
            raise RecordingError("nothing was done and nothing answered, so nothing is recorded")
        if not self._person.is_settled:
            raise RecordingError(
                "the page after the last action was closed before it was read; finish with Enter "
                "or Ctrl-C in the terminal instead"
            )
        stop = Action("stop", answer=answer)
        try:
            require_writable(stop, self._person.page)
        except NotWritable as error:
            raise RecordingError(f"the answer cannot be recorded: {error}") from None
        steps, pages = list[RecordedStep](), list[Page]()
        for page, action in (*self._steps, (self._person.page, stop)):
            pages.append(page)
            quote = find_quotation(action, self._goal, pages)
            steps.append(RecordedStep(page, write_reply(action, page, quote=quote)))
        started = datetime.now(UTC).isoformat(timespec="seconds")
        key, number = f"person {started}", 1
        while key in keys:
            number += 1
            key = f"person {started} {number}"
        found = Recording(key=key, goal=self._goal, steps=tuple(steps), world_seed=world_seed)
        passwords = Secrets(self._person.passwords)
        if passwords.mask(line := str(found.to_json())) != line:
            raise RecordingError(
                "the episode shows a password that was typed, so it is not recorded; give it with "
                "--secret NAME=env:VARIABLE"
            )
        return found

    def keep(self, file: RecordingFile, answer: str, *, world_seed: int | None = None) -> Recording:
        """Append the episode to a file; see `recording`."""
        found = self.recording(answer, keys=file.keys, world_seed=world_seed)
        file.append(found)
        return found


def described(action: Action, page: Page) -> str:
    """Return an action as people read it: `click [12] link 'Deals'`."""
    node = None if action.element_id is None else page.element(action.element_id)
    return f"{render(action)} {node.role} {label(node)!r}" if node is not None else render(action)


def require_writable(action: Action, page: Page) -> None:
    """Check that a model's reply can hold an action, whatever is in its text.

    Raises:
        NotWritable: the action that is read from the reply is another one.
    """
    for write in (write_reply, write_free_reply):
        try:
            read = parse(extract(write(action, page), strict=False), strict=False)
        except ActionError as error:
            raise NotWritable(f"no reply can hold it: {error}") from None
        if read != action:
            raise NotWritable(f"a reply that holds it would be read as {render(read)[:80]!r}")
