"""The prompt of an episode, turn by turn: what agents feed to a model, and what trains it."""

from agentkv.dialog.further import describe
from agentkv.dialog.prompt import EncodedText, Template, nonce_of
from agentkv.settings import ActingSettings
from agentkv_env.changes import Known, serialize_changes
from agentkv_env.page import Page


class EpisodePrompt:
    """The prompt of one episode, or of several in a row with the same nonce.

    Args:
        template: the prompt format.
        settings: those of observations count.
        goal: the first goal.
        seed: of the episode.
    """

    def __init__(self, template: Template, settings: ActingSettings, goal: str, seed: int) -> None:
        self._template, self._settings = template, settings
        self.nonce = nonce_of(goal, seed)
        """Identifies the fences of the episode's pages."""
        self.known: Known | None = None
        """What the model has read of the last page, if observations refer to it."""

    def opening(self, goal: str) -> list[int]:
        """Return the ids that begin the episode."""
        return self._template.opening(goal, self.nonce)

    def observation(self, page: Page) -> EncodedText:
        """Serialize the next page as the model is shown it, and encode it once."""
        template = self._template
        counted: list[EncodedText] = []

        def count(text: str) -> int:
            if counted:
                return template.count(text)
            counted.append(template.encoded(text))  # the whole page
            return len(counted[0].ids)

        seen, known = serialize_changes(
            page,
            self.known,
            layout=template.layout,
            budget=self._settings.observation_tokens,
            count=count,
        )
        self.known = known if self._settings.observations == "changes" else None
        return counted[0] if counted == [seen.text] else template.encoded(seen.text)

    def further_actions(self, page: Page) -> str:
        """Describe actions that only some pages have a use for, unless the model was trained on a
        language without them."""
        return describe(page) if self._template.thoughts == "free" else ""

    def turn(self, observation: str, note: str = "", *, actions: str = "") -> list[int]:
        """Return the ids of one page, up to where the model begins to write; see `Template.turn`.

        Args:
            observation: from `observation`; empty shows no page.
        """
        return self._template.turn(observation, note, self.nonce, actions=actions)
