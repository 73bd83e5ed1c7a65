"""Judge models: what strings and addresses cannot decide, asked of a chat model.

VisualWebArena asks GPT-4 whether two answers mean the same, and BLIP-2 what an image shows. Here a
model at one address that speaks OpenAI's protocol, such as `agentkv serve`, is asked both. The
wording of the questions is our own.
"""

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from agentkv_tasks.evaluate.interface import ask
from agentkv_tasks.evaluate.strings import CannotScore

_TIMEOUT_S = 60.0
_MAX_TOKENS = 32
_MAX_CHARS = 8_000
_MAX_SIDE = 1024

_SAME = """A student answered a question. Compare the student's answer with the reference answer.
Question: {question}
Reference answer: {reference}
Student's answer: {answer}
Do both answers mean the same? Reply with one word: yes or no."""
_REASON = """A student had to do a task that cannot be done, and says why.
Task: {question}
The real reason: {reference}
The student says: {answer}
Does the student give the same reason? Reply with one word: yes or no."""


class JudgeError(ValueError):
    """A judge that cannot be reached, or that does not know its model."""


@dataclass(frozen=True)
class Judge:
    """A chat model at an address.

    Args:
        address: address of the interface, such as `http://127.0.0.1:8000/v1`.
        model: name of the model there.
        key: API key; empty for none.
    """

    address: str
    model: str
    key: str = field(default="", repr=False)
    _said: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Answers to the questions of one episode, by the request."""

    def __str__(self) -> str:
        return f"{self.model} at {self.address}"

    def forget(self) -> None:
        """Forget the answers of an episode, which the other scoring of the episode may reuse."""
        self._said.clear()

    def check(self) -> None:
        """Ask the judge for a word.

        Raises:
            JudgeError: it does not answer.
        """
        try:
            self._ask("Reply with one word: yes.")
        except CannotScore as error:
            raise JudgeError(f"--judge: {error}") from None

    def means_the_same(self, question: str, reference: str, answer: str) -> bool:
        """Return True if `answer` to `question` means what `reference` means.

        Raises:
            CannotScore: the judge does not answer with yes or no.
        """
        return self._decide(_SAME, question, reference, answer)

    def gives_the_reason(self, goal: str, reason: str, answer: str) -> bool:
        """Return True if `answer` says why `goal` cannot be done as `reason` says.

        Raises:
            CannotScore: the judge does not answer with yes or no.
        """
        return self._decide(_REASON, goal, reason, answer)

    def describe(self, image: Image.Image, question: str) -> str:
        """Return the answer to a question about an image.

        Raises:
            CannotScore: the judge does not answer, or takes no images.
        """
        small = image.convert("RGB")
        small.thumbnail((_MAX_SIDE, _MAX_SIDE))
        data = io.BytesIO()
        small.save(data, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
        return self._ask(
            [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": f"{question} Reply with a few words."},
            ]
        )

    def _decide(self, template: str, question: str, reference: str, answer: str) -> bool:
        text = template.format(question=question, reference=reference, answer=answer[:_MAX_CHARS])
        said = self._ask(text)
        word = said.strip(" \n\t.\"'*").partition(" ")[0].strip(".,:;!\"'*\n").lower()
        if word not in ("yes", "no"):
            raise CannotScore(f"the judge said {said[:80]!r}; expected yes or no")
        return word == "yes"

    def _ask(self, content: str | Sequence[dict[str, Any]]) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": _MAX_TOKENS,
        }
        url = f"{self.address.rstrip('/')}/chat/completions"
        asked = json.dumps(body)
        if asked not in self._said:  # both scorings ask the same
            answer = ask(url, body, key=self.key, timeout_s=_TIMEOUT_S)
            try:
                said = answer["choices"][0]["message"]["content"]
            except (KeyError, IndexError, TypeError):
                said = None
            if not isinstance(said, str):
                raise CannotScore(f"{url} does not answer as OpenAI's chat completions do")
            self._said[asked] = said
        return self._said[asked]
