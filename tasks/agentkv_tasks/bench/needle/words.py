"""Needles for models that were not trained on actions: they are asked for words.

Such a model gets a short instruction, the question and the page's facts as sentences in its own
chat template, and answers with any text. The codes in that text are its answer.
"""

import re
from collections.abc import Sequence

from agentkv.dialog.chat import ChatTemplate
from agentkv.dialog.fence import break_tags
from agentkv.dialog.prompt import one_line
from agentkv.models.local import LocalModel

_INSTRUCTION = "Answer the question from the text, in a few words."
_LINE = re.compile(r"^text '(.*)'$", re.MULTILINE)
"""A line of a serialized page with a text; others hold its address and title."""
_CODE = re.compile(r"(?<![\w-])[A-Z]+-[0-9]+(?![\w-])", re.IGNORECASE)
"""The form of all codes of a page. A longer word that contains one is no code."""


class WordsTemplate(ChatTemplate):
    """A model's chat template around a question in words and the sentences of a page.

    The page is one of this benchmark, which nobody hostile wrote, so that no fence surrounds it.
    """

    def opening(self, goal: str, nonce: str = "") -> list[int]:
        """Return the instruction and the question, up to where the page begins."""
        return [
            *self._tokenizer.encode_trusted(self._start),
            *self.encode(_INSTRUCTION),
            *self._tokenizer.encode_trusted(self._before_user),
            *self.goal(goal),
        ]

    def goal(self, goal: str) -> list[int]:
        """Return the question as the beginning of a user message."""
        return self.encode(f"{break_tags(one_line(goal))}\n\n")

    def turn(
        self, observation: str, note: str = "", nonce: str = "", *, actions: str = ""
    ) -> list[int]:
        """Return the sentences of a page, up to where the reply begins."""
        text = "".join(f"{_sentence(line)}\n" for line in _LINE.findall(observation))
        return [*self.encode(text), *self._tokenizer.encode_trusted(self._before_reply)]

    def question(self, text: str, *, form: str = "") -> list[int]:
        """Return what `goal` does: every question is answered in words."""
        return self.goal(text)


def words_template(local: LocalModel) -> WordsTemplate | None:
    """Return the template in which a model answers in words; None for one that writes actions."""
    if local.template.thoughts != "free":
        return None
    return WordsTemplate(local.source_tokenizer, end_ids=sorted(local.template.end_ids))


def _sentence(line: str) -> str:
    """Return a line such as `code of A | B` as a sentence: small models do not read tables."""
    what, bar, value = line.partition(" | ")
    if not bar:
        return line
    return f"The {what} is {value}." if what.startswith("code of ") else f"{what} is {value}"


def codes_in(text: str) -> str | None:
    """Return the codes in an answer in words, joined by commas; None without any.

    A code that is repeated counts once. So an answer that copies the codes of several lines is not
    right, and one that quotes the line with the code is.
    """
    found: Sequence[str] = list(dict.fromkeys(code.upper() for code in _CODE.findall(text)))
    return ", ".join(found) or None
