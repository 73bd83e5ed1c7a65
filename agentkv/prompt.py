"""Goal and pages to token ids: append-only streams, in which a page can forge nothing.

A stream is never rendered again. It grows by `opening`, then per turn by `turn`, then by the ids the
model itself wrote; `between` closes a reply before the next turn. So the keys and values of everything
said so far stay valid, and an evicting cache loses nothing but what its policy chose to lose.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from tokenizers import Tokenizer

Layout = Literal["after", "before"]


class Template(Protocol):
    """How one family of models is spoken to. Holds no episode state: share it freely."""

    @property
    def layout(self) -> Layout:
        """Where an element's id stands in the text of a page (`agentkv_env.serialize`)."""
        ...

    @property
    def boxes(self) -> bool:
        """Whether page lines end in their boxes."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Any of these, sampled, ends a reply. They are not fed back: `between` closes the reply."""
        ...

    @property
    def between(self) -> tuple[int, ...]:
        """What follows a reply before the next turn's ids."""
        ...

    def opening(self, goal: str, nonce: str = "") -> list[int]:
        """The start of an episode's stream. `nonce` marks its page fences."""
        ...

    def turn(self, observation: str, note: str = "", nonce: str = "") -> list[int]:
        """One page, up to where the model begins to write. `note` is the harness's word before it."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of untrusted text: never a special or control token."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a reply's ids, control tokens left out."""
        ...

    def count(self, text: str) -> int:
        """Tokens in untrusted text."""
        ...


class PlainTemplate:
    """The format of models trained here: four special tokens and nothing else.

        <|goal|> goal  <|page|> note, page <|act|>  reply <|end|>  <|page|> note, page <|act|>  reply <|end|> ...

    The special ids cannot come out of text, so the structure needs no other fence; `nonce` is ignored.
    A note is one line before the page's first line. Ids stand after names (our choice: a small model finds
    an id by copying what stood before it).

    Raises:
        ValueError: `tokenizer` lacks one of the four tokens.
    """

    SPECIALS = ("<|goal|>", "<|page|>", "<|act|>", "<|end|>")

    layout: Layout = "after"
    boxes = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        missing = [token for token in self.SPECIALS if tokenizer.token_to_id(token) is None]
        if missing:
            raise ValueError(f"the tokenizer has no {', '.join(missing)}; it was not made for PlainTemplate")
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.encode_special_tokens = True  # "<|end|>" in a text is then eight characters
        self._goal, self._page, self._act, self._end = (
            self._tokenizer.token_to_id(token) for token in self.SPECIALS
        )
        self.end_ids = frozenset({self._end})
        self.between = (self._end,)

    def opening(self, goal: str, nonce: str = "") -> list[int]:
        return [self._goal, *self.encode(goal)]

    def turn(self, observation: str, note: str = "", nonce: str = "") -> list[int]:
        text = f"{one_line(note)}\n{observation}" if note else observation
        return [self._page, *self.encode(text), self._act]

    def reply(self, text: str) -> list[int]:
        """What a model should write to say `text`, end token included: the target of training."""
        return [*self.encode(text), self._end]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def count(self, text: str) -> int:
        return len(self.encode(text))


def one_line(text: str) -> str:
    """`text` with white space collapsed, so that it cannot pass for lines of a page."""
    return " ".join(text.split())
