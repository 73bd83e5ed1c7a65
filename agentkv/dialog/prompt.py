"""Goal and pages to token ids: append-only streams, in which a page can forge nothing.

A stream is never rendered again. It grows by `opening`, then per turn by `turn`, then by the ids
the model itself wrote; `between` closes a reply before the next turn. So the keys and values of
everything said so far stay valid, and an evicting cache loses only what its policy chose to lose.
"""

import re
from collections.abc import Sequence
from typing import Literal, Protocol

from tokenizers import Tokenizer

Layout = Literal["after", "before"]
Thoughts = Literal["named", "free"]
"""The lines before the action. `named`: `read` and a note on what a later step needs of the page,
if anything; `for` and the part of the goal that is begun, if one is; `at` and the element acted on
as it reads in the page; `from` and a quotation where it types or answers what a page said; else
`done` before a stop and the bare verb before other actions. `free`: any short line."""


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
    def thoughts(self) -> Thoughts:
        """What a constrained reply says before its action."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Any of these, sampled, ends a reply. None is fed back: `between` closes the reply."""
        ...

    @property
    def between(self) -> tuple[int, ...]:
        """What follows a reply before the next turn's ids."""
        ...

    def opening(self, goal: str, nonce: str = "") -> list[int]:
        """The start of an episode's stream. `nonce` marks its page fences."""
        ...

    def turn(self, observation: str, note: str = "", nonce: str = "") -> list[int]:
        """One page, up to where the model begins to write; `note` is the harness's word before."""
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


_FREE_TEXT = re.compile(r"(```(?:type \[\d+\]|stop) \[)(?=[^\]\s])")
_SPACED_TEXT = re.compile(r"(```(?:type \[\d+\]|stop) \[) ")


class PlainTemplate:
    """The format of models trained here: four special tokens and nothing else.

        <|goal|> goal  <|page|> note, page <|act|>  reply <|end|>  <|page|> ... <|act|> ...

    The special ids cannot come out of text, so the structure needs no other fence; `nonce` is
    ignored. A note is one line before the page's first line. Ids stand after names (our choice: a
    small model finds an id by copying what stood before it). What is typed or answered begins with
    a space, which `reply` adds and `decode` takes away: it is made of the tokens that were read.

    Raises:
        ValueError: `tokenizer` lacks one of the four tokens.
    """

    SPECIALS = ("<|goal|>", "<|page|>", "<|act|>", "<|end|>")

    layout: Layout = "after"
    boxes = False
    thoughts: Thoughts = "named"

    def __init__(self, tokenizer: Tokenizer) -> None:
        known = tokenizer.get_vocab()
        missing = [token for token in self.SPECIALS if token not in known]
        if missing:
            raise ValueError(f"the tokenizer lacks {', '.join(missing)}, which PlainTemplate needs")
        self._text = UntrustedText(tokenizer)
        self._goal, self._page, self._act, self._end = (known[token] for token in self.SPECIALS)
        self.end_ids = frozenset({self._end})
        self.between = (self._end,)

    def opening(self, goal: str, nonce: str = "") -> list[int]:
        return [self._goal, *self.encode(goal)]

    def turn(self, observation: str, note: str = "", nonce: str = "") -> list[int]:
        text = f"{one_line(note)}\n{observation}" if note else observation
        return [self._page, *self.encode(text), self._act]

    def reply(self, text: str) -> list[int]:
        """What a model should write to say `text`, end token included: the target of training."""
        return [*self.encode(_FREE_TEXT.sub(r"\1 ", text)), self._end]

    def encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return _SPACED_TEXT.sub(r"\1", self._text.decode(ids))

    def count(self, text: str) -> int:
        return len(self.encode(text))


class UntrustedText:
    """A tokenizer that no text can talk into a control token.

    Control tokens are the special ones, and added ones of the shape `<...>` or `[LETTERS]` that
    some tokenizers do not declare special. Where one is spelt out, the text is split inside it and
    the halves encoded apart. An id that still came out, through a normaliser, say, is dropped.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._trusting = Tokenizer.from_str(tokenizer.to_str())
        self._trusting.no_truncation()
        self._trusting.no_padding()
        self._wary = Tokenizer.from_str(self._trusting.to_str())
        self._wary.encode_special_tokens = True
        control = {
            id: token.content
            for id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special or re.fullmatch(r"<.+>|\[/?[A-Z_]+\]", token.content)
        }
        self.control_ids = frozenset(control)
        spelt = sorted(control.values(), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, spelt))) if spelt else None

    def encode(self, text: str) -> list[int]:
        text = text.encode("utf-8", "replace").decode()  # no tokenizer takes unpaired surrogates
        cuts = [0]
        if self._control is not None:
            cuts += [found.start() + 1 for found in self._control.finditer(text)]
        ids: list[int] = []
        for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
            ids += self._wary.encode(text[start:end], add_special_tokens=False).ids
        return [id for id in ids if id not in self.control_ids]

    def encode_trusted(self, text: str) -> list[int]:
        """Ids of text of ours, control tokens included."""
        ids: list[int] = self._trusting.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._wary.decode(list(ids), skip_special_tokens=True)
        return text


def one_line(text: str) -> str:
    """`text` with white space collapsed, so that it cannot pass for lines of a page."""
    return " ".join(text.split())
