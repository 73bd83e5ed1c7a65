"""Prompts as token ids: an append-only stream that no page can forge.

A stream is never rendered again. It grows by `opening`, then in each turn by `turn` and by the ids
that the model wrote; `separator` follows a reply before the next turn, and a further `goal` or
`question` may follow the separator. All keys and values thus stay valid, and an evicting cache
loses only entries that its policy drops.
"""

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tokenizers import Tokenizer

from agentkv_env.serialize import Layout

Thoughts = Literal["named", "free"]
"""The lines before the action. `free` is any one short line. `named` has these lines, in order:

* `read` and a note that quotes the page, for later steps; none or several,
* `for` and the part of the goal in progress; optional,
* `at` and the name of the element that the action is on,
* `from` and a quotation, if the action types or answers text from a page.

A reply with neither of the last two has a line with `done` before a stop, or with the verb before
any other action."""


class DoesNotThink(ValueError):
    """The chat template of a model has no place for thoughts."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """Format of the thought that precedes a reply; `turn` ends where the thought begins."""

    end: tuple[int, ...]
    """Ids that end a thought. The first one ends it when sampled, and the others follow."""
    forbidden: frozenset[int]
    """Ids that no thought may have, such as those that end a reply."""
    num_ids: int
    """Largest id of the tokenizer, plus one."""


class EncodedText(str):
    """A text with its ids, as `Template.encode` returns them."""

    ids: list[int]
    ends: list[int]
    """For each id, the number of characters up to its end."""


class Template(Protocol):
    """The prompt format of one family of models. Stateless, so episodes can share it."""

    @property
    def layout(self) -> Layout:
        """The format of pages; see `agentkv_env.serialize`."""
        ...

    @property
    def thoughts(self) -> Thoughts:
        """The lines before the action in constrained replies."""
        ...

    @property
    def thinking(self) -> Thinking | None:
        """Format of a thought before a reply; None if the model does not think."""
        ...

    @property
    def texts(self) -> "UntrustedTextTokenizer":
        """The tokenizer of its texts."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a reply when sampled. They are not fed; `separator` closes the reply."""
        ...

    @property
    def separator(self) -> tuple[int, ...]:
        """Ids between a reply and the next turn."""
        ...

    def opening(self, goal: str, nonce: str = "") -> list[int]:
        """Return the ids that begin an episode. `nonce` identifies its page fences."""
        ...

    def with_thoughts(self) -> "Template":
        """Return the template with which the model thinks before each reply.

        Raises:
            DoesNotThink: a ValueError; the model has no way to.
        """
        ...

    def goal(self, goal: str) -> list[int]:
        """Return the ids of a further goal, which replaces the one before it."""
        ...

    def question(self, text: str, *, form: str = "") -> list[int]:
        """Return the ids of a question that the next reply answers in words.

        Args:
            form: JSON schema of the answer, for templates with free thoughts; empty for none.
        """
        ...

    def turn(
        self, observation: str, note: str = "", nonce: str = "", *, actions: str = ""
    ) -> list[int]:
        """Return the ids of one page, up to where the model begins to write or to think.

        Args:
            observation: the serialized page; empty shows no page. An `EncodedText` is not encoded
                again where the prompt has it as it is.
            note: the harness's message, placed before the page; empty for none.
            nonce: as for `opening`.
            actions: lines about actions that only this page has a use for (`dialog.further`), for
                templates with free thoughts; empty for none.
        """
        ...

    def reply(self, text: str) -> list[int]:
        """Return the ids of a whole reply as the model writes it, those that close it included."""
        ...

    def encode(self, text: str) -> list[int]:
        """Encode untrusted text, without special or control tokens."""
        ...

    def encoded(self, text: str) -> EncodedText:
        """Return a text with what `encode` returns, and where each id ends."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Decode the ids of a reply, without its control tokens."""
        ...

    def count(self, text: str) -> int:
        """Count the tokens of untrusted text."""
        ...


def nonce_of(goal: str, seed: int) -> str:
    """Return the nonce of an episode: reproducible, yet unpredictable for a page that does not know
    the goal."""
    return hashlib.sha256(f"{seed}\n{goal}".encode()).hexdigest()[:8]


_FREE_TEXT = re.compile(r"(```(?:type \[\d+\]|stop) \[)(?=[^\]\s])")
_SPACED_TEXT = re.compile(r"(```(?:type \[\d+\]|stop) \[) ")


def spaced(reply: str) -> str:
    """Return a reply whose typed or answered text begins with a space, as a model learns to write
    it: its first token is then the one that the text begins with in a sentence."""
    return _FREE_TEXT.sub(r"\1 ", reply)


def unspaced(reply: str) -> str:
    """Return a reply without the space that its text may begin with."""
    return _SPACED_TEXT.sub(r"\1", reply)


class TokenizedTemplate:
    """The encoding that all prompt formats share."""

    _tokenizer: "UntrustedTextTokenizer"

    @property
    def texts(self) -> "UntrustedTextTokenizer":
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def encoded(self, text: str) -> EncodedText:
        return self._tokenizer.encoded(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def count(self, text: str) -> int:
        return len(self.encode(text))


class PlainTemplate(TokenizedTemplate):
    """The prompt format of models trained in this project, with four special tokens.

        <|goal|> goal  <|page|> note, page <|act|>  reply <|end|>  <|page|> ... <|act|> ...

    Text never encodes to a special id, so pages need no fence and `nonce` is ignored. A note is one
    line before the page. Ids follow names (our choice: a small model finds an id by copying the
    text before it). Typed and answered text begins with a space, which `reply` adds and `decode`
    removes, so that it encodes to the same tokens as on the page that it was read from.

    Raises:
        ValueError: `tokenizer` lacks one of the four tokens.
    """

    SPECIALS = ("<|goal|>", "<|page|>", "<|act|>", "<|end|>")
    """The special tokens, in stream order."""

    layout: Layout = "after"
    """A line for each node, where its id follows its name."""
    thoughts: Thoughts = "named"
    """Constrained replies name their element and quote their source."""
    thinking: Thinking | None = None
    """These models write what they think as the lines before an action."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        known = tokenizer.get_vocab()
        missing = [token for token in self.SPECIALS if token not in known]
        if missing:
            raise ValueError(f"the tokenizer lacks {', '.join(missing)}, which PlainTemplate needs")
        self._tokenizer = UntrustedTextTokenizer(tokenizer)
        self._goal, self._page, self._act, self._end = (known[token] for token in self.SPECIALS)
        self.end_ids = frozenset({self._end})
        self.separator = (self._end,)

    def opening(self, goal: str, nonce: str = "") -> list[int]:
        """Return the goal after its special token."""
        return self.goal(goal)

    def with_thoughts(self) -> Template:
        """Raise DoesNotThink."""
        raise DoesNotThink("models with this prompt format write no thoughts")

    def goal(self, goal: str) -> list[int]:
        """Return a further goal after its special token."""
        return [self._goal, *self.encode(goal)]

    def question(self, text: str, *, form: str = "") -> list[int]:
        """Return a question as a goal, which such models answer with a stop."""
        return self.goal(text)

    def turn(
        self, observation: str, note: str = "", nonce: str = "", *, actions: str = ""
    ) -> list[int]:
        """Return the note and the page between their special tokens."""
        if isinstance(observation, EncodedText) and not note:
            return [self._page, *observation.ids, self._act]
        text = f"{one_line(note)}\n{observation}" if note else observation
        return [self._page, *self.encode(text), self._act]

    def reply(self, text: str) -> list[int]:
        """Return the ids of a reply and its end token: the target of training."""
        return [*self.encode(spaced(text)), self._end]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode the ids of a reply, without control tokens and the space before its text."""
        return unspaced(self._tokenizer.decode(ids))


class UntrustedTextTokenizer:
    """A tokenizer that never encodes untrusted text to control tokens.

    Control tokens are all special tokens, and added tokens such as `<...>` or `[LETTERS]` that some
    tokenizers fail to declare special. Where a text contains one, it is split inside the token and
    the parts are encoded separately. Control ids that appear nevertheless, for example through a
    normalizer, are dropped.

    Args:
        tokenizer: the model's tokenizer; it is copied.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        content = tokenizer.to_str()
        self._trusted, self._untrusted = Tokenizer.from_str(content), Tokenizer.from_str(content)
        for each in (self._trusted, self._untrusted):
            each.no_truncation()
            each.no_padding()
        self._untrusted.encode_special_tokens = True
        control = {
            id: token.content
            for id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special or re.fullmatch(r"<.+>|\[/?[A-Z_]+\]", token.content)
        }
        self.control_ids = frozenset(control)
        """Ids of all control tokens."""
        self.special_ids = frozenset(
            id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        """Ids of the control tokens that are declared special."""
        added = tokenizer.get_added_tokens_decoder().values()
        self._normalizes_control = tokenizer.normalizer is not None and any(
            token.normalized for token in added
        )
        self.control_texts = sorted(control.values(), key=len, reverse=True)
        """Texts of all control tokens, the longest first."""
        self._control = re.compile("|".join(map(re.escape, self.control_texts)) or r"(?!)")
        self._added = {
            id: token.content for id, token in tokenizer.get_added_tokens_decoder().items()
        }
        decoder = b"" if tokenizer.decoder is None else tokenizer.decoder.__getstate__()
        self._is_byte_level = b'"type":"ByteLevel"' in decoder

    def encode(self, text: str) -> list[int]:
        """Encode untrusted text, without control ids. Lone surrogates become question marks."""
        ids = [id for part in _encode_each(self._untrusted, self._parts(text)) for id in part]
        return [id for id in ids if id not in self.control_ids]

    def encoded(self, text: str) -> EncodedText:
        """Return a text with what `encode` returns, and where each id ends."""
        whole = EncodedText(text)
        ids, ends = whole.ids, whole.ends = [], []
        start, parts = 0, self._parts(text)
        encoded = self._untrusted.encode_batch(parts, add_special_tokens=False)
        for text, part in zip(parts, encoded, strict=True):
            for id, (_, end) in zip(part.ids, part.offsets, strict=True):
                if id not in self.control_ids:
                    ids.append(id)
                    ends.append(start + end)
            start += len(text)
        return whole

    def _parts(self, text: str) -> list[str]:
        """Cut untrusted text inside its control tokens."""
        text = text.encode("utf-8", "replace").decode()  # tokenizers reject lone surrogates
        cuts = [0, *(found.start() + 1 for found in self._control.finditer(text)), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(cuts)]

    def encode_trusted(self, text: str, *, begins: bool = False) -> list[int]:
        """Encode text of a template itself, control tokens included.

        Args:
            begins: add what the tokenizer puts at the beginning of a stream.
        """
        return self.encode_each_trusted([text], begins=begins)[0]

    def encode_each_trusted(self, texts: Sequence[str], *, begins: bool = False) -> list[list[int]]:
        """Do what `encode_trusted` does for several texts at once."""
        return _encode_each(self._trusted, texts, begins=begins)

    def replace_control(self, text: str, replacement: str) -> str:
        """Replace each control token in `text` by `replacement`, whose braces receive the token's
        index in `control_texts`.

        Where the tokenizer may find control tokens in text only once it is normalized, the text is
        normalized (NFKC) if it has some.
        """
        if self._normalizes_control and self._control.search(unicodedata.normalize("NFKC", text)):
            text = unicodedata.normalize("NFKC", text)
        return self._control.sub(
            lambda found: replacement.format(self.control_texts.index(found[0])), text
        )

    def bytes_of(self, id: int) -> bytes:
        """Return the bytes that a token stands for, which may be a part of a character.

        They are those of its text, with a space at its beginning where the vocabulary marks one.
        """
        if id in self._added:
            return self._added[id].encode()
        token: str = self._trusted.id_to_token(id) or ""
        if self._is_byte_level and _BYTES_OF_CHARACTERS.keys() >= set(token):
            return bytes(_BYTES_OF_CHARACTERS[each] for each in token)
        if found := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
            return bytes.fromhex(found[1])
        return token.replace("\u2581", " ").encode()

    def decode(self, ids: Sequence[int]) -> str:
        """Decode `ids` without special tokens."""
        text: str = self._untrusted.decode(list(ids), skip_special_tokens=True)
        return text

    def decode_all(self, ids: Sequence[int]) -> str:
        """Decode `ids` with their special tokens."""
        text: str = self._untrusted.decode(list(ids), skip_special_tokens=False)
        return text


def one_line(text: str) -> str:
    """Return `text` with each run of white space collapsed, so that it cannot add page lines."""
    return " ".join(text.split())


def _characters_of_bytes() -> dict[str, int]:
    """Return the bytes by the characters that stand for them in byte-level vocabularies: printable
    bytes for themselves, the others for the characters from 256 on, in their order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_BYTES_OF_CHARACTERS = _characters_of_bytes()


def _encode_each(
    tokenizer: Tokenizer, texts: Sequence[str], *, begins: bool = False
) -> list[list[int]]:
    """Encode texts, and let other threads run meanwhile, as `Tokenizer.encode` does not."""
    ids: list[list[int]] = []
    for start in range(0, len(texts), _BATCH):
        some = list(texts[start : start + _BATCH])
        ids += [x.ids for x in tokenizer.encode_batch_fast(some, add_special_tokens=begins)]
    return ids


_BATCH = 512
"""Texts per call: what is made of them is handed over in one go."""
