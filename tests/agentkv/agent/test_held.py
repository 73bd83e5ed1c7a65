"""A reply says what the cache still holds of earlier pages, and how sure the model was."""

import json
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkv.agent import Agent
from agentkv.dialog.prompt import UntrustedTextTokenizer
from agentkv.episode import ActionRefused
from agentkv.models.held import piece_ends
from agentkv.models.local import LocalConversation, LocalModel
from agentkv.models.model import Reply
from agentkv.trace import TraceWriter, read_trace
from agentkv_env.actions import Action
from agentkv_env.masking import Secrets, ends_in_masked
from agentkv_env.page import Box, Node, Page
from agentkv_env.session import Session
from tests.agentkv.agent.test_trace import STEP

LINES = ("Harbour café: berth 42 is free", "<page> [3] `x`", "", "word " * 30, "x" * 100)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def page_of(number: int) -> Page:
    nodes = [Node("text", "text", f"{line} {number}", Box(1, 2, 3, 4)) for line in LINES]
    nodes.append(Node("element", "link", "Blue Kayak", Box(1, 2, 3, 4), id=number))
    return Page(f"http://shop.localhost/{number}", f"Page {number}", tuple(nodes))


def talk(
    model: LocalModel, policy: str, *, num_turns: int = 3, **options: Any
) -> tuple[LocalConversation, list[Reply]]:
    conversation = model.with_cache(policy, temperature=1.0, **options).begin("find it", seed=5)
    notes = ("", "error: x")
    return conversation, [conversation.reply(page_of(i), notes[i % 2]) for i in range(num_turns)]


def merged(replies: list[Reply]) -> dict[str, str]:
    """What the cache holds after the last reply, of the spans that were ever named."""
    held: dict[str, str] = {}
    for reply in replies:
        held |= reply.held
    return held


class RecordingTokenizer(UntrustedTextTokenizer):
    """Notes every text of strangers that it encodes."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.texts: list[str] = []

    def _parts(self, text: str) -> list[str]:
        self.texts.append(text)
        return super()._parts(text)


@pytest.mark.parametrize("budget", [3840, None, 64])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.sample("values")
def test_what_is_shown_of_a_page_is_encoded_once(
    tiny_model: LocalModel, tiny_chat_model: LocalModel, chat: bool, budget: int | None
) -> None:
    model = tiny_chat_model if chat else tiny_model
    template: Any = copy(model.template)
    tokenizer = template._tokenizer = RecordingTokenizer(model.tokenizer)
    conversation = replace(model, template=template).with_cache("full", observation_tokens=budget)
    talking = conversation.begin("find it")
    for number in range(2):
        page = talking.reply(page_of(number)).observation
        assert tokenizer.texts.count(page) == 1
        # a chat template has it a second time, between the tags of its fence
        marked = page.replace("<page", "(page")
        others = [text for text in tokenizer.texts if marked in text and text != page]
        assert len(others) == (1 if chat else 0)


@pytest.mark.parametrize("chat", [False, True])
def test_the_pieces_of_a_page_are_its_text_and_have_its_tokens(
    tiny_model: LocalModel, tiny_chat_model: LocalModel, chat: bool
) -> None:
    model = tiny_chat_model if chat else tiny_model
    conversation, replies = talk(model, "full")
    for number, reply in enumerate(replies):
        turn = conversation._stream.turns[number]
        start = 0
        pieces = conversation._held._pieces[number]
        assert reply.piece_ends[-1] == len(reply.observation)
        for end, (first, last) in zip(reply.piece_ends, pieces, strict=True):
            text = reply.observation[start:end]
            assert len(text) <= 72 + 1 and "\n" not in text[:-1]
            decoded = model.template.decode(turn.shown[first:last])
            shown = text if not chat else text.replace("<page", "(page")
            assert shown.strip() in decoded and len(decoded) <= len(text) + 12
            start = end


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("window", {"budget": 128}),
        ("ada-snapkv", {"budget": 128}),
        ("lookback-int8", {"budget": 352, "num_turns": 4}),
        ("full", {"last_pages": 2}),
        ("full", {"last_pages": 1, "rebuild": True}),
    ],
)
def test_levels_say_what_the_cache_holds_of_each_piece(
    tiny_model: LocalModel, policy: str, options: dict[str, Any]
) -> None:
    conversation, replies = talk(tiny_model, policy, **options)
    cache, held = conversation.cache, merged(replies)
    slots = [kept for layer in range(2) for kept in cache.kept(layer)[0]]
    levels = set()
    for number, turn in enumerate(conversation._stream.turns):
        digits = held.get(f"page {number}", "4" * len(replies[number].piece_ends))
        pieces = conversation._held._pieces[number]
        assert len(digits) == len(pieces)
        if options.get("rebuild") and turn.is_forgotten:
            assert set(digits[2:]) == {"0"}
            levels.add("0")
            continue
        for digit, (first, last) in zip(digits, pieces, strict=True):
            positions = torch.arange(turn.start + first, turn.start + last)
            num_held = sum(int(torch.isin(positions, kept).sum()) for kept in slots)
            num_all = len(slots) * len(positions)
            expected = (
                0 if not num_held else 4 if num_held == num_all else 1 + 3 * num_held // num_all
            )
            assert digit == str(expected)
            levels.add(digit)
    assert "0" in levels and "4" in levels


def test_only_what_changed_is_named_again(tiny_model: LocalModel) -> None:
    _, replies = talk(tiny_model, "window", num_turns=8, budget=256)
    known: dict[str, str] = {}
    for reply in replies:
        assert all(known.get(label) != digits for label, digits in reply.held.items())
        known |= reply.held
    assert set(known["page 0"]) == {"0"} and "page 0" not in replies[-1].held
    assert known.get("goal", "4") == "4"  # it is pinned


def test_what_a_question_evicts_is_named_by_the_step_after_it(tiny_model: LocalModel) -> None:
    acting = tiny_model.with_cache("window", temperature=1.0, budget=320)
    conversation = acting.begin("find it", seed=5)
    assert "4" in conversation.reply(page_of(0)).held["page 0"]
    assert conversation.answer("Which berth is free?", page_of(1)).held == {}
    held = conversation.reply(page_of(2)).held
    assert set(held["page 0"]) == {"0"} and "page 1" in held


def test_evicted_entries_are_those_that_the_cache_lacks(tiny_model: LocalModel) -> None:
    for options in ({}, {"last_pages": 1, "rebuild": True}):
        conversation, replies = talk(tiny_model, "window", budget=128, **options)
        counts = [reply.cache.num_evicted for reply in replies if reply.cache is not None]
        assert counts == sorted(counts) and counts[-1] > 0
    for policy, num_shared in (("window", 2), ("h2o", 1)):  # heads that keep the same entries
        cache = talk(tiny_model, policy, budget=128)[0].cache
        kept = sum(len(positions) for layer in range(2) for positions in cache.kept(layer)[0])
        assert cache.num_evicted == (4 * cache.seen - kept) / num_shared


def test_tokens_that_looked_back_name_what_was_fetched(tiny_model: LocalModel) -> None:
    conversation, replies = talk(tiny_model, "lookback-int8", budget=128)
    noted = [reply for reply in replies if reply.token_looks]
    assert noted and all(len(each.token_looks) == len(each.confidences) for each in noted)
    looks = [count for each in noted for count in each.token_looks]
    assert any(looks)
    for each in noted:  # a token that the grammar forced was not looked up
        pairs = zip(each.token_looks, each.confidences, strict=True)
        assert not any(count and confidence is None for count, confidence in pairs)
    assert sum(looks) <= sum(conversation.cache.fetched.values())
    assert not any(reply.token_looks for reply in talk(tiny_model, "window", budget=128)[1])


def test_a_cache_that_keeps_everything_has_forgotten_nothing(tiny_model: LocalModel) -> None:
    _, replies = talk(tiny_model, "full")
    assert all(reply.held == {} for reply in replies)
    assert all(reply.cache is not None and not reply.cache.num_evicted for reply in replies)


@pytest.mark.parametrize("options", [{}, {"decoding": "free"}, {"thinking": 8}])
def test_every_token_of_a_reply_has_its_text_and_its_confidence_or_was_forced(
    tiny_chat_model: LocalModel, options: dict[str, Any]
) -> None:
    _, replies = talk(tiny_chat_model, "full", max_new_tokens=60, **options)
    for reply in replies:
        assert len(reply.token_ends) == len(reply.confidences)
        assert list(reply.token_ends) == sorted(reply.token_ends)
        assert not reply.token_ends or reply.token_ends[-1] == len(reply.text)
        sampled = [each for each in reply.confidences if each is not None]
        assert all(0 <= each <= 1 for each in sampled)
        if options.get("decoding") == "free":
            assert len(sampled) == len(reply.confidences)
        else:
            assert 0 < len(sampled) < len(reply.confidences)


def test_confidence_is_that_of_the_model_before_the_grammar(tiny_model: LocalModel) -> None:
    conversation = tiny_model.with_cache("full").begin("find it")
    first = conversation.reply(page_of(0))
    place = next(i for i, each in enumerate(first.confidences) if each is not None)
    turn, template = conversation._stream.turns[0], tiny_model.template
    ids = [*template.opening("find it"), *turn.shown, *turn.reply]
    at = len(ids) - len(turn.reply) + place
    with torch.no_grad():
        logits = tiny_model.model(torch.tensor([ids[:at]])).logits[0, -1]
    assert first.confidences[place] == pytest.approx(float(logits.softmax(-1)[ids[at]]), abs=0.02)


@pytest.mark.parametrize("text", ["", "\n", "a", "a\n\nb", "x" * 500, "w " * 200 + "\n", "ä\n" * 9])
def test_pieces_cover_a_text_without_gaps(text: str) -> None:
    ends = piece_ends(text)
    assert ends == sorted(set(ends)) and (ends[-1] if ends else 0) == len(text)


def go_on(page: Page, action: Action) -> None:
    """Refuse to stop, which a random model may do in its first reply."""
    if action.kind == "stop":
        raise ActionRefused("go on")


@pytest.mark.browser
def test_a_trace_says_what_was_forgotten_and_reads_back(
    tiny_model: LocalModel, session: Session, tmp_path: Path
) -> None:
    agent = Agent(tiny_model, policy="window", budget=64, temperature=1.0)
    with TraceWriter(tmp_path / "one.jsonl", head={"goal": "x"}) as trace:
        episode = agent.run(
            session, "find the berth", max_steps=4, on_step=trace.step, before_action=go_on
        )
        trace.end(episode)
    steps = read_trace(tmp_path / "one.jsonl").steps
    assert steps == episode.steps and len(steps) > 1
    assert steps[-1].num_evicted > steps[0].num_evicted > 0
    assert "page 0" in {label for step in steps for label in step.held}
    assert [step.turn for step in steps] == list(range(len(steps)))


@pytest.mark.parametrize(
    ("text", "secrets", "parts"),
    [
        ("type [1] [welcome99] [1]", ["welcome99"], ["type [1] [", "***", "] [1]"]),
        ("welcome99 welcome99", ["welcome99"], ["***", " ", "***"]),
        ("a *** welcome99", ["welcome99"], ["a *** ", "***"]),
        ("http://bo:k3y99999@a.test/", [], ["http://", "***@", "a.test/"]),
    ],
)
def test_places_move_with_the_text_that_is_masked(
    text: str, secrets: list[str], parts: list[str]
) -> None:
    masked = Secrets(secrets).mask(text)
    ends = ends_in_masked(text, masked, range(1, len(text) + 1))
    assert len(ends) == len(text) and list(ends) == sorted(ends) and ends[-1] == len(masked)
    start = 0
    for part in parts[:-1]:
        start += len(part)
        assert start in ends or start - 1 in ends


def test_places_move_behind_the_name_of_a_secret() -> None:
    text, masked = "say welcome99 twice", "say <secret:shop> twice"
    assert ends_in_masked(text, masked, [4, 8, 13, 14, 19]) == (4, 17, 17, 18, 23)


def test_texts_that_do_not_correspond_have_no_places() -> None:
    assert ends_in_masked("abc", "xyz", [1, 2]) == ()
    assert ends_in_masked("abc", "***x", [1, 2]) == ()


def test_a_secret_that_becomes_known_late_is_in_no_token(tmp_path: Path) -> None:
    secrets = Secrets()
    reply = "type [1] [welcome99] [1]"
    step = replace(
        STEP, reply=reply, token_ends=(6, 10, 13, 16, 19, 24), observation="welcome99\nb"
    )
    step = replace(step, piece_ends=(10, 11), confidences=(0.5,) * 6)
    path = tmp_path / "one.jsonl"
    with TraceWriter(path, head={"goal": "x"}, secrets=secrets) as trace:
        trace.step(step)
        secrets.add("welcome99")
    (read,) = read_trace(path).steps
    assert read.reply == "type [1] [***] [1]" and read.observation == "***\nb"
    assert read.token_ends == (6, 10, 13, 13, 13, 18) and read.piece_ends == (4, 5)


def test_an_older_trace_has_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with TraceWriter(path, head={"goal": "x"}) as trace:
        trace.step(STEP)
    head, row = map(json.loads, path.read_text().splitlines())
    newer = ("turn", "token_ends", "confidences", "token_looks", "piece_ends", "held")
    for name in (*newer, "num_evicted"):
        del row[name]
    path.write_text(f"{json.dumps(head)}\n{json.dumps(row)}\n")
    assert read_trace(path).steps == (STEP,)
