"""Token masks that enforce the grammar of a reply (`reply_grammar`)."""

import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from agentkv.dialog.prompt import Thoughts
from agentkv.dialog.reply_grammar import continuation_grammar, named_grammar, reply_grammar
from agentkv_env.page import Page

CLOSING_TOKENS = 32
"""Tokens reserved for closing a reply before its limit (our choice): most actions need fewer, and a
truncated action cannot be parsed."""

# Steps that llguidance may take to set up a grammar and to advance it by one token. Its defaults
# fail at some 5,000 elements. The work stays bounded, because the size of every grammar is.
_INITIAL_FUEL = 50_000_000
_TOKEN_FUEL = 10_000_000


class GrammarError(RuntimeError):
    """llguidance rejected a grammar; the message is its own, shortened."""


class Grammar:
    """Token masks over one tokenizer's vocabulary.

    The first matcher takes up to a second more than later ones, so make one grammar per model.

    Args:
        tokenizer: the model's tokenizer, which must not change afterwards.
        end_id: the id that ends a reply.
    """

    def __init__(self, tokenizer: Tokenizer, *, end_id: int) -> None:
        self._source, self._end_id = tokenizer, end_id

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        copy = Tokenizer.from_str(self._source.to_str())
        copy.no_padding()
        copy.no_truncation()
        return LLTokenizer(copy.to_str(), eos_token=self._end_id)

    @cached_property
    def _special_texts(self) -> list[str]:
        added = self._source.get_added_tokens_decoder().values()
        return [token.content for token in added if token.special]

    @cached_property
    def _closing(self) -> "_Closing":
        # Line break and closing bracket as byte-level and byte-fallback tokenizers write them.
        vocabulary = self._source.get_vocab()
        return _Closing(
            line=self._beginning_with(vocabulary, ("\n", "\u010a", "<0x0A>")),
            text=self._beginning_with(vocabulary, ("]", "<0x5D>")),
        )

    def _beginning_with(
        self, vocabulary: Mapping[str, int], starts: tuple[str, ...]
    ) -> torch.Tensor:
        mask = torch.zeros(self._tokenizer.vocab_size, dtype=torch.bool)
        mask[[id for text, id in vocabulary.items() if text.startswith(starts)]] = True
        return mask

    def start(
        self,
        page: Page,
        goal: str,
        *,
        thoughts: Thoughts = "named",
        max_tokens: int | None = None,
        only_stop: bool = False,
        names_elements: bool = False,
    ) -> "Matcher":
        """Return a fresh matcher of the replies that `page` allows an agent with this `goal`.

        Takes 5 ms for a page of the embedded sites, and 0.1 ms per token (medians of 555 replies).

        Args:
            max_tokens: maximum number of tokens in the reply, which is closed before that; None for
                no limit.
            only_stop, names_elements: as in `reply_grammar`.

        Raises:
            GrammarError: llguidance rejected the grammar.
        """

        def after_quotation(prefix: str) -> str | None:
            return continuation_grammar(page, goal, prefix)

        def after_thought(prefix: str) -> str | None:
            line = prefix.removesuffix("\n")
            if only_stop:
                return None
            return named_grammar(page, line, names_elements=names_elements)

        return Matcher(
            self._tokenizer,
            reply_grammar(
                page,
                goal,
                thoughts=thoughts,
                names_elements=names_elements,
                only_stop=only_stop,
            ),
            _Continuation(_QUOTATION, after_quotation, copies=True)
            if thoughts == "named"
            else _Continuation(_FIRST_LINE, after_thought, copies=False),
            self._closing,
            max_tokens=max_tokens,
        )

    def match(self, grammar: str) -> "Matcher":
        """Return a fresh matcher of a Lark grammar (llguidance's dialect).

        Raises:
            GrammarError: llguidance rejected the grammar.
        """
        if any(text in grammar for text in self._special_texts):
            # Text that must come next and spells a special token would become that token.
            grammar = f'%llguidance {{"no_forcing": true}}\n{grammar}'
        return Matcher(self._tokenizer, grammar, None, self._closing, max_tokens=None)


_QUOTATION = re.compile(r"^from .*\n", re.MULTILINE)
_FIRST_LINE = re.compile(r"\A.*\n")


class _Continuation(NamedTuple):
    """A grammar for the rest of a reply, which depends on a line of it."""

    line: re.Pattern[str]
    grammar: Callable[[str], str | None]
    """Called once, with the text up to the end of the line; returns a grammar of whole replies, or
    None to stay with the one before."""
    copies: bool
    """True if the action repeats the line, for which tokens must be left."""


class _Closing(NamedTuple):
    """Masks of ids: bool, (vocabulary,)."""

    line: torch.Tensor
    """Ids that end a line before the action."""
    text: torch.Tensor
    """Ids that end a text in the action."""


class Matcher:
    """Follows one reply through its grammar, token by token.

    Args:
        continuation: what may replace `grammar` on the way; None for nothing.
        closing: the ids that close a line or a text.
        max_tokens: maximum number of tokens in the reply; None for no limit.

    Raises:
        GrammarError: llguidance rejected the grammar; `allowed` and `consume` raise it as well.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        grammar: str,
        continuation: _Continuation | None,
        closing: _Closing,
        *,
        max_tokens: int | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._matcher = _new_matcher(tokenizer, grammar)
        self._continuation = continuation
        self._closing = closing
        self._max_tokens = max_tokens
        self._ids: list[int] = []
        self._check()

    @property
    def is_complete(self) -> bool:
        """True if the reply is complete, so that only its end may follow."""
        return self._matcher.is_accepting()

    @property
    def has_ended(self) -> bool:
        """True if the reply is complete and nothing but its end may follow."""
        return self._matcher.is_stopped()

    def allowed(self) -> torch.Tensor:
        """Return a mask of the ids that may come next: bool, (vocabulary,), on the CPU.

        At least one id is allowed. With fewer than `CLOSING_TOKENS` left, only ids that close the
        current line or text are allowed, wherever it may be closed.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        mask = np.unpackbits(bits, bitorder="little")[: self._tokenizer.vocab_size]
        allowed = torch.from_numpy(mask.view(np.bool_))
        if self._tokens_left < CLOSING_TOKENS:
            # a bracket in a line before the action, or a line break in its text, closes nothing
            is_in_action = "```" in self._tokenizer.decode_str(self._ids)
            closing = self._closing.text if is_in_action else self._closing.line
            if (closing := allowed & closing).any():
                return closing
        return allowed

    def forced(self) -> list[int]:
        """Return the ids that must come next, often none. Does not consume them."""
        ids: list[int] = self._matcher.compute_ff_tokens()
        return ids

    def consume(self, ids: list[int]) -> None:
        """Advance past `ids`, which must be allowed."""
        if not self._matcher.consume_tokens(ids):
            raise GrammarError(f"the grammar of the reply forbids what was sampled: {ids}")
        self._ids += ids
        if self._continuation is not None and "\n" in self._tokenizer.decode_str(ids):
            text = self._tokenizer.decode_str(self._ids)
            if line := self._continuation.line.search(text):
                wanted = CLOSING_TOKENS + len(line[0]) / 2 if self._continuation.copies else 0
                if self._tokens_left >= wanted:
                    self._switch_grammar(self._continuation.grammar(text[: line.end()]))
                self._continuation = None

    @property
    def _tokens_left(self) -> float:
        return math.inf if self._max_tokens is None else self._max_tokens - len(self._ids)

    def _switch_grammar(self, grammar: str | None) -> None:
        if grammar is not None:
            self._matcher = _new_matcher(self._tokenizer, grammar)
            assert self._matcher.consume_tokens(self._ids), self._matcher.get_error()
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("   1 | ")[0]  # then it lists the grammar
            raise GrammarError(f"the grammar of the reply failed: {' '.join(reason.split())[:300]}")


def _new_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    limits = LLParserLimits(initial_lexer_fuel=_INITIAL_FUEL, step_lexer_fuel=_TOKEN_FUEL)
    return LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), limits=limits)
