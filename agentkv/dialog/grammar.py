"""Which replies a page allows, and the token masks that enforce it.

A reply under constraint is some lines of thought and one fenced action. Every element number in
it is on the page, so a constrained model is always read and never names what is not there; its
notes quote the page, what it says of the goal the goal says, and where it says of what its text is
made, the text is made of that (`quotes`).
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from agentkv.dialog.prompt import Thoughts
from agentkv.dialog.quotes import TEXT, quotations, texts_made_of
from agentkv.dialog.reply import label
from agentkv_env.page import Node, Page
from agentkv_env.serialize import MAX_NAME, MAX_OPTIONS, neutralize

MAX_THOUGHT = 400
"""Characters of a line of thought."""
MAX_TEXT = 120
"""Characters a free string may have; unbounded, a small model never closes the bracket."""
MAX_URL = 200
RESERVE = 32
"""Tokens before the limit from which a reply is brought to its end; most actions need fewer, and a
cut one would be no action."""

MAX_SPELT = 400_000
"""Characters of the patterns that spell out elements one by one: those of some two thousand.
Elements beyond these, in reading order, are told apart by their numbers alone."""

TYPEABLE = frozenset({"textbox", "searchbox", "combobox", "textarea", "spinbutton", "slider"})
"""Roles that take typed text."""

_OUT_OF_REACH = frozenset({"disabled", "covered"})
_KEYS = (
    "Enter Escape Tab Backspace Delete Space ArrowDown ArrowUp ArrowLeft ArrowRight "
    "PageDown PageUp Home End"
).split()

# Steps that llguidance may take for the largest grammar here, and for one token of its replies;
# its own limits stop at some 5,000 elements. What bounds the work is the size of the grammar.
_INITIAL_FUEL = 50_000_000
_TOKEN_FUEL = 10_000_000


class GrammarError(RuntimeError):
    """llguidance cannot follow a grammar; the message is its own, shortened."""


def reply_grammar(page: Page, goal: str, *, thoughts: Thoughts = "named") -> str:
    """A Lark grammar (llguidance's dialect) of exactly the replies allowed on `page`.

    Only typeable roles may be typed into, and where there are options only those. What is disabled
    or covered may be pointed at. Scrolling is allowed where there is something to scroll to. The
    grammar's size is bounded, whatever the page and the goal (`MAX_SPELT`, `quotes.MAX_QUOTABLE`,
    `quotes.MAX_GOAL`).
    """
    acts = _on_elements(page)
    acts += [_Act(verb, action) for verb, action in _elsewhere(page)]
    answer = rf"stop \[{TEXT}{{0,{MAX_TEXT}}}\]"
    if thoughts == "free":
        actions = "|".join(act.action for act in [*acts, _Act("done", answer)])
        thought = rf"[^`\x00-\x1f\x7f-\x9f]{{0,{MAX_THOUGHT}}}"
        return f"start: REPLY\nREPLY: {_regex(thought + _fenced(actions))}"
    plain = "|".join(act.thought + _fenced(act.action) for act in [*acts, _Act("done", answer)])
    ways = [_regex(plain), f"FROM {_regex(_fenced(answer))}"]
    ways += [
        f'{_regex(act.thought)} "\\n" FROM {_regex(_fenced(act.action))}'
        for act in acts
        if act.may_quote
    ]
    return f"start: REPLY\nREPLY: FIRST ({' | '.join(ways)})\n{quotations(goal, page)}"


def rest_grammar(page: Page, goal: str, begun: str) -> str | None:
    """The grammar of the replies that begin with `begun`, which ends with a `from` line.

    What is typed or answered is made of what that line quotes, all of it; None where none of the
    texts that are short enough is.
    """
    *thoughts, last = begun.removesuffix("\n").split("\n")
    texts = texts_made_of(last.removeprefix("from "), goal, most=MAX_TEXT)
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
        f'start: REPLY\nREPLY: {json.dumps(begun)} "```" {action} "```"\n'
        f"TEXTS: {_regex(f' ?(?:{texts})')} & /{TEXT}{{1,{MAX_TEXT}}}/"
    )


@dataclass(frozen=True, slots=True)
class _Act:
    """A thought and the action it leads to, as regular expressions."""

    thought: str
    action: str
    may_quote: bool = False
    """Whether a quotation may stand between them."""


def _on_elements(page: Page) -> list[_Act]:
    """An act for each element, and one or two for all those that are too many to spell out."""
    acts: list[_Act] = []
    left = MAX_SPELT
    numbered: dict[str, list[str]] = {"hover": [], "click|hover": [], "click|hover|clear": []}
    for node in page.nodes:
        if node.id is None:
            continue
        act = _Act(f"at {re.escape(label(node))}", _on(node), may_quote=_takes_text(node))
        # A thought is written once more where something may be quoted after it.
        left -= (1 + act.may_quote) * (len(act.thought) + len(act.action))
        if left >= 0:
            acts.append(act)
        elif not _OUT_OF_REACH.isdisjoint(node.states):
            numbered["hover"].append(str(node.id))
        elif _takes_text(node):
            numbered["click|hover|clear"].append(str(node.id))
        else:
            numbered["click|hover"].append(str(node.id))
    for verbs, ids in numbered.items():
        if ids:
            on = rf"\[(?:{'|'.join(ids)})\]"
            action = f"(?:{verbs}) {on}"
            if "clear" in verbs:
                action += rf"|type {on} \[{TEXT}{{1,{MAX_TEXT}}}\] \[[01]\]"
            acts.append(_Act(rf"at {TEXT}{{1,{MAX_NAME}}}", action))
    return acts


def _fenced(action: str) -> str:
    return rf"\n```(?:{action})```"


def _regex(pattern: str) -> str:
    """`pattern` as a grammar writes it."""
    return "/" + pattern.replace("/", r"\/") + "/"


def _on(node: Node) -> str:
    id = node.id
    if not _OUT_OF_REACH.isdisjoint(node.states):
        return rf"hover \[{id}\]"
    actions = [rf"(?:click|hover) \[{id}\]"]
    if _takes_text(node):
        text = rf"{TEXT}{{1,{MAX_TEXT}}}"
        actions.append(rf"clear \[{id}\]")
    else:
        text = "|".join(re.escape(neutralize(each)) for each in node.options[:MAX_OPTIONS])
    if text and _is_typeable(node):
        # Text may begin with a space: `PlainTemplate` writes it so.
        actions.append(rf"type \[{id}\] \[ ?(?:{text})\] \[[01]\]")
    return "|".join(actions)


def _is_typeable(node: Node) -> bool:
    reachable = _OUT_OF_REACH.isdisjoint(node.states)
    return reachable and node.role in TYPEABLE and "readonly" not in node.states


def _takes_text(node: Node) -> bool:
    return _is_typeable(node) and not node.options


def _elsewhere(page: Page) -> list[tuple[str, str]]:
    """Actions on no element: thought and pattern."""
    up = ["up"] if page.pixels_above > 0 else []
    down = ["down"] if page.pixels_below > 0 else []
    actions = [("scroll", rf"scroll \[{way}\]") for way in up + down]
    actions += [
        ("goto", rf"goto \[https?://[^\[\]`\s\x00-\x1f\x7f-\x9f]{{1,{MAX_URL}}}\]"),
        ("press", rf"press \[(?:(?:Control|Shift|Alt)\+)?(?:{'|'.join(_KEYS)}|[a-z])\]"),
        ("go_back", "go_back"),
        ("go_forward", "go_forward"),
        ("new_tab", "new_tab"),
    ]
    if len(page.tabs) > 1:
        tabs = "|".join(str(tab) for tab in range(len(page.tabs)))
        actions += [("tab_focus", rf"tab_focus \[(?:{tabs})\]"), ("close_tab", "close_tab")]
    return actions


class Grammar:
    """Masks over one tokenizer's vocabulary. Costs about a second to make: one per model."""

    def __init__(self, tokenizer: Tokenizer, *, end_id: int) -> None:
        copy = Tokenizer.from_str(tokenizer.to_str())
        copy.no_padding()
        copy.no_truncation()
        self._tokenizer = LLTokenizer(copy.to_str(), eos_token=end_id)
        self._closing = torch.zeros(self._tokenizer.vocab_size, dtype=torch.bool)
        # As byte-level and byte-fallback tokenizers spell a line break and a closing bracket.
        begins = ("\n", "\u010a", "<0x0A>", "]", "<0x5D>")
        self._closing[[id for text, id in copy.get_vocab().items() if text.startswith(begins)]] = (
            True
        )

    def start(
        self, page: Page, goal: str, *, thoughts: Thoughts = "named", most: int | None = None
    ) -> "Matcher":
        """A fresh matcher of the replies that `page` allows to who has this `goal`.

        5 milliseconds for a page of the sites, and 0.1 for each token (medians of 555 replies).

        Args:
            most: tokens a reply may have; near to them it is brought to its end.
        """
        grammar = reply_grammar(page, goal, thoughts=thoughts)
        rest = (lambda begun: rest_grammar(page, goal, begun)) if thoughts == "named" else None
        return Matcher(self._tokenizer, grammar, rest, self._closing, most=most)


class Matcher:
    """Follows one reply, token by token.

    Args:
        rest: the grammar for a reply of which this much is written, which ends with a `from` line;
            None to go on with `grammar`.
        closing: the ids that end a string or a line: bool, (vocabulary,).
        most: tokens the reply may have.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        grammar: str,
        rest: Callable[[str], str | None] | None,
        closing: torch.Tensor,
        *,
        most: int | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._matcher = _following(tokenizer, grammar)
        self._rest = rest
        self._closing = closing
        self._most = most
        self._ids: list[int] = []
        self._check()

    @property
    def is_complete(self) -> bool:
        """The reply is whole: nothing may follow but its end."""
        return self._matcher.is_accepting()

    def allowed(self) -> torch.Tensor:
        """Which ids may come next: bool, (vocabulary,), on the CPU; never none of them.

        With `RESERVE` tokens left, only those that close the present string or line, where it may
        be closed.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        mask = np.unpackbits(bits, bitorder="little")[: self._tokenizer.vocab_size]
        allowed = torch.from_numpy(mask.view(np.bool_))
        if self._left < RESERVE and (closing := allowed & self._closing).any():
            return closing
        return allowed

    def forced(self) -> list[int]:
        """The ids that must come next whatever the model says; often none. Not yet consumed."""
        ids: list[int] = self._matcher.compute_ff_tokens()
        return ids

    def consume(self, ids: list[int]) -> None:
        """Go on past `ids`, which must be allowed."""
        assert self._matcher.consume_tokens(ids), self._matcher.get_error()
        self._ids += ids
        if self._rest is not None and "\n" in self._tokenizer.decode_str(ids):
            text = self._tokenizer.decode_str(self._ids)
            if line := re.search(r"^from .*\n", text, re.MULTILINE):
                self._hold(self._rest(text[: line.end()]))
                self._rest = None

    @property
    def _left(self) -> float:
        """Tokens the reply may still have."""
        return math.inf if self._most is None else self._most - len(self._ids)

    def _hold(self, grammar: str | None) -> None:
        """Go on with `grammar`, if its longest text surely has room."""
        if grammar is not None and self._left >= RESERVE + MAX_TEXT / 2:
            self._matcher = _following(self._tokenizer, grammar)
            assert self._matcher.consume_tokens(self._ids), self._matcher.get_error()
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the page's grammar failed: {self._matcher.get_error()[:200]}")


def _following(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    limits = LLParserLimits(initial_lexer_fuel=_INITIAL_FUEL, step_lexer_fuel=_TOKEN_FUEL)
    return LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), limits=limits)
