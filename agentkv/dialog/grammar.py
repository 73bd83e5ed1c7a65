"""The grammar of the replies that a page allows, and the token masks that enforce it.

A constrained reply has some lines of thought and one fenced action. It always parses, every element
number in it is on the page, and its quotations of page and goal are exact (`quotes`).
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from agentkv.dialog.further import patterns as further_patterns
from agentkv.dialog.prompt import Thoughts
from agentkv.dialog.quotes import SHOWN, TEXT, quotation_rules, text_pattern
from agentkv.dialog.reply import MAX_THOUGHT, described, label
from agentkv_env.page import Node, Page
from agentkv_env.serialize import MAX_NAME, MAX_OPTIONS, neutralize

MAX_TEXT = 120
"""Maximum number of characters in a free string. Without a limit, a small model never closes the
bracket."""
MAX_QUOTED_TEXT = 400
"""Maximum number of characters in a string that consists of quoted passages, such as a list of
eighteen facts. It is longer than `MAX_TEXT` because the passages determine where it ends."""
MAX_URL = 200
"""Maximum number of characters in an address after its scheme."""
CLOSING_TOKENS = 32
"""Tokens reserved for closing a reply before its limit (our choice): most actions need fewer, and a
truncated action cannot be parsed."""

MAX_ELEMENT_CHARS = 400_000
"""Characters of the patterns that pair elements with their names, enough for some two thousand
elements. Later elements, in reading order, are identified by number alone."""

TYPEABLE = frozenset(
    {"textbox", "searchbox", "combobox", "listbox", "textarea", "spinbutton", "slider"}
)
"""Roles that accept typed text or the name of an option."""

_UNREACHABLE = frozenset({"disabled", "covered"})
_KEYS = (
    "Enter Escape Tab Backspace Delete Space ArrowDown ArrowUp ArrowLeft ArrowRight "
    "PageDown PageUp Home End"
).split()

# Steps that llguidance may take to set up a grammar and to advance it by one token. Its defaults
# fail at some 5,000 elements. The work stays bounded, because the size of every grammar is.
_INITIAL_FUEL = 50_000_000
_TOKEN_FUEL = 10_000_000


class GrammarError(RuntimeError):
    """llguidance rejected a grammar; the message is its own, shortened."""


def reply_grammar(
    page: Page, goal: str, *, thoughts: Thoughts = "named", only_stop: bool = False
) -> str:
    """Return a Lark grammar (llguidance's dialect) of exactly the replies allowed on `page`.

    With `only_stop`, the only action is the stop.

    Text may be typed only into typeable roles; an element with options accepts only these. Disabled
    and covered elements may only be hovered over. Scrolling is allowed only in directions where
    there is more of the page. `MAX_ELEMENT_CHARS`, `quotes.MAX_QUOTABLE` and `quotes.MAX_GOAL`
    bound the grammar's size for every page and goal.
    """
    if thoughts == "free":
        actions = _STOP if only_stop else _actions(page, page.nodes)
        thought = rf"[^`\x00-\x1f\x7f-\x9f]{{0,{MAX_THOUGHT}}}"
        return f"start: REPLY\nREPLY: {_regex(thought + _fenced(actions))}"
    patterns = [] if only_stop else [*_element_patterns(page.nodes), *_page_patterns(page)]
    unquoted = [pattern.thought + _fenced(pattern.action) for pattern in patterns]
    unquoted.append("done" + _fenced(_STOP))
    replies = [_regex("|".join(unquoted)), f"FROM {_regex(_fenced(_STOP))}"]
    replies += [
        f'{_regex(pattern.thought)} "\\n" FROM {_regex(_fenced(pattern.action))}'
        for pattern in patterns
        if pattern.may_quote
    ]
    return f"start: REPLY\nREPLY: FIRST ({' | '.join(replies)})\n{quotation_rules(goal, page)}"


def continuation_grammar(page: Page, goal: str, prefix: str) -> str | None:
    """Return the grammar of the replies that begin with `prefix`, which ends with a `from` line.

    The text typed or answered must consist of everything that the line quotes.

    Returns:
        A Lark grammar of whole replies, or None if every such text is longer than
        `MAX_QUOTED_TEXT`.
    """
    *thoughts, last = prefix.removesuffix("\n").split("\n")
    texts = text_pattern(last.removeprefix("from "), goal, max_chars=MAX_QUOTED_TEXT)
    if texts is None:
        return None
    ids = [
        str(node.id)
        for node in page.nodes
        if node.id is not None and _takes_text(node) and thoughts[-1:] == [f"at {label(node)}"]
    ]
    if ids:
        action = rf'"type [" /{"|".join(ids)}/ "] [" TEXTS "] [" /[01]/ "]"'
    else:
        action = '"stop [" TEXTS "]"'
    return (
        f'start: REPLY\nREPLY: {json.dumps(prefix)} "```" {action} "```"\n'
        f"TEXTS: {_regex(f' ?(?:{texts})')} & /{SHOWN}{{1,{MAX_QUOTED_TEXT}}}/"
    )


def named_grammar(page: Page, line: str) -> str | None:
    """Return the grammar of the replies with free thoughts that begin with `line`, which names an
    element: its role and its name, as `reply.write_free_reply` writes them.

    Their actions on elements begin with one of those that have this role and name.

    Returns:
        A Lark grammar of whole replies, or None if the line names no element of the page.
    """
    wanted = line.strip()
    named = [node for node in page.nodes if node.id is not None and described(node) == wanted]
    if not named:
        return None
    actions = _actions(page, named)
    return f"start: REPLY\nREPLY: {json.dumps(line)} {_regex(_fenced(actions))}"


@dataclass(frozen=True, slots=True)
class _ActionPattern:
    """One thought and the actions that may follow it, as regular expressions."""

    thought: str
    action: str
    may_quote: bool = False
    """True if a `from` line may separate thought and action."""


_STOP = rf"stop \[{TEXT}{{0,{MAX_TEXT}}}\]"


def _actions(page: Page, nodes: Sequence[Node]) -> str:
    """Return a pattern of the actions of replies with free thoughts.

    Args:
        nodes: those of the page that an action on an element may begin with.
    """
    own = [pattern.action for pattern in _element_patterns(nodes) + _page_patterns(page)]
    return "|".join([*own, *further_patterns(page, nodes), _STOP])


def _element_patterns(nodes: Sequence[Node]) -> list[_ActionPattern]:
    """Return one pattern per element, and up to three for all beyond `MAX_ELEMENT_CHARS`."""
    patterns: list[_ActionPattern] = []
    left = MAX_ELEMENT_CHARS
    numbered: dict[str, list[str]] = {"hover": [], "click|hover": [], "click|hover|clear": []}
    for node in nodes:
        if node.id is None:
            continue
        pattern = _ActionPattern(
            f"at {re.escape(label(node))}", _element_action(node), may_quote=_takes_text(node)
        )
        # A pattern that allows a quotation appears twice in the grammar.
        left -= (1 + pattern.may_quote) * (len(pattern.thought) + len(pattern.action))
        if left >= 0:
            patterns.append(pattern)
        elif not _UNREACHABLE.isdisjoint(node.states):
            numbered["hover"].append(str(node.id))
        elif _takes_text(node):
            numbered["click|hover|clear"].append(str(node.id))
        else:
            numbered["click|hover"].append(str(node.id))
    for verbs, ids in numbered.items():
        if ids:
            number = rf"\[(?:{'|'.join(ids)})\]"
            action = f"(?:{verbs}) {number}"
            if "clear" in verbs:
                action += rf"|type {number} \[{TEXT}{{1,{MAX_TEXT}}}\] \[[01]\]"
            patterns.append(_ActionPattern(rf"at {SHOWN}{{1,{MAX_NAME}}}", action))
    return patterns


def _fenced(action: str) -> str:
    return rf"\n```(?:{action})```"


def _regex(pattern: str) -> str:
    """Return `pattern` as a regex literal of a Lark grammar."""
    return "/" + pattern.replace("/", r"\/") + "/"


def _element_action(node: Node) -> str:
    """Return a pattern of the actions that `node` allows."""
    id = node.id
    if not _UNREACHABLE.isdisjoint(node.states):
        return rf"hover \[{id}\]"
    if node.role == "area":  # a press would hit whatever lies in its middle
        return rf"hover \[{id}\]"
    actions = [rf"(?:click|hover) \[{id}\]"]
    if _takes_text(node):
        text = rf"{TEXT}{{1,{MAX_TEXT}}}"
        actions.append(rf"clear \[{id}\]")
    else:
        text = "|".join(re.escape(neutralize(each)) for each in node.options[:MAX_OPTIONS])
    if text and _is_typeable(node):
        # `PlainTemplate` begins typed text with a space.
        actions.append(rf"type \[{id}\] \[ ?(?:{text})\] \[[01]\]")
    return "|".join(actions)


def _is_typeable(node: Node) -> bool:
    reachable = _UNREACHABLE.isdisjoint(node.states)
    return reachable and node.role in TYPEABLE and "readonly" not in node.states


def _takes_text(node: Node) -> bool:
    return _is_typeable(node) and not node.options


def _page_patterns(page: Page) -> list[_ActionPattern]:
    """Return the patterns of actions without an element, except the stop."""
    up = ["up"] if page.pixels_above > 0 else []
    down = ["down"] if page.pixels_below > 0 else []
    patterns = [_ActionPattern("scroll", rf"scroll \[{direction}\]") for direction in up + down]
    patterns += [
        _ActionPattern("goto", rf"goto \[https?://[^\[\]`\s\x00-\x1f\x7f-\x9f]{{1,{MAX_URL}}}\]"),
        _ActionPattern(
            "press", rf"press \[(?:(?:Control|Shift|Alt)\+)?(?:{'|'.join(_KEYS)}|[a-z])\]"
        ),
        _ActionPattern("go_back", "go_back"),
        _ActionPattern("go_forward", "go_forward"),
        _ActionPattern("new_tab", "new_tab"),
    ]
    if len(page.tabs) > 1:
        tabs = "|".join(str(tab) for tab in range(len(page.tabs)))
        patterns += [
            _ActionPattern("tab_focus", rf"tab_focus \[(?:{tabs})\]"),
            _ActionPattern("close_tab", "close_tab"),
        ]
    return patterns


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
    ) -> "Matcher":
        """Return a fresh matcher of the replies that `page` allows an agent with this `goal`.

        Takes 5 ms for a page of the embedded sites, and 0.1 ms per token (medians of 555 replies).

        Args:
            max_tokens: maximum number of tokens in the reply, which is closed before that; None for
                no limit.
            only_stop: allow no action but the stop.

        Raises:
            GrammarError: llguidance rejected the grammar.
        """

        def after_quotation(prefix: str) -> str | None:
            return continuation_grammar(page, goal, prefix)

        def after_thought(prefix: str) -> str | None:
            return None if only_stop else named_grammar(page, prefix.removesuffix("\n"))

        return Matcher(
            self._tokenizer,
            reply_grammar(page, goal, thoughts=thoughts, only_stop=only_stop),
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
