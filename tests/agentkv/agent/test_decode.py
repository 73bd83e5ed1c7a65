import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import agentkv
from agentkv.agent import Agent
from agentkv.dialog.reply import notes_in
from agentkv.models.batch import Batch
from agentkv.models.find import ModelError
from agentkv.models.load import load_model, local_model
from agentkv.models.local import LocalConversation, LocalModel
from agentkv.models.model import ContextLimit
from agentkv.models.rules import FreeRule, ThinkingRule
from agentkv_env.actions import ActionError, extract, parse
from agentkv_env.page import Box, Node, Page
from agentkv_env.serialize import serialize


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def begin(model: LocalModel, policy: Any = "full", **options: object) -> LocalConversation:
    return model.with_cache(policy, **options).begin("find the kayak", seed=5)  # type: ignore[arg-type]


def test_constrained_replies_are_actions_on_the_page_in_every_turn(
    tiny_model: LocalModel, page: Page
) -> None:
    conversation = begin(tiny_model, "conf-kv-int8", budget=128, temperature=1.0)
    for _ in range(6):
        reply = conversation.reply(page)
        action = parse(extract(reply.text))
        assert action.element_id is None or page.element(action.element_id) is not None
        conversation.cache.check()


def test_constrained_replies_of_chat_models_end_before_the_limit(
    tiny_chat_model: LocalModel, page: Page
) -> None:
    conversation = begin(tiny_chat_model, temperature=1.0, max_new_tokens=80)
    for _ in range(4):
        reply = conversation.reply(page)
        parse(extract(reply.text))
        assert reply.num_tokens_out <= 80


@pytest.mark.parametrize("decoding", ["constrained", "free"])
def test_a_thought_is_bounded_stays_in_the_stream_and_is_no_part_of_the_reply(
    tiny_chat_model: LocalModel, page: Page, decoding: str
) -> None:
    limit = 12
    conversation = begin(
        tiny_chat_model, temperature=1.0, thinking=limit, max_new_tokens=60, decoding=decoding
    )
    template = tiny_chat_model.template.with_thoughts()
    assert template.thinking is not None
    end = list(template.thinking.end)
    for number in range(3):
        reply = conversation.reply(page)
        ids = conversation._stream.turns[number].reply
        stop = next(i for i in range(len(ids)) if ids[i : i + len(end)] == end)
        assert stop <= limit
        assert template.thinking.forbidden.isdisjoint(ids[:stop])
        assert reply.thinking == template.decode(ids[:stop]).strip()
        written = ids[stop + len(end) : len(ids) - len(template.separator)]
        assert reply.text == template.decode(written)
        assert reply.num_tokens_out == stop + len(end) + len(written)
        if decoding == "constrained":
            parse(extract(reply.text))


def test_a_thought_that_ends_by_itself_is_not_cut(tiny_chat_model: LocalModel) -> None:
    template = tiny_chat_model.template.with_thoughts()
    assert template.thinking is not None
    first, *others = template.thinking.end
    rule = ThinkingRule(FreeRule(template, max_tokens=9), template.thinking, max_tokens=3)
    word = template.encode("k")[0]
    rule.accept(word)
    assert (rule.pending, rule.answer) == ([word], [])
    rule.accept(first)
    assert rule.pending == [first, *others]
    rule.accept(word)
    assert (rule.ids, rule.answer) == ([word, first, *others, word], [word])
    rule.accept(min(template.end_ids))
    assert rule.is_complete and rule.pending == []


def test_an_answer_in_words_may_have_blocks_of_code(tiny_chat_model: LocalModel) -> None:
    template = tiny_chat_model.template
    for is_action in (True, False):
        rule = FreeRule(template, max_tokens=500, is_action=is_action)
        for id in template.encode("see ```code``` and more"):
            if not rule.is_complete:
                rule.accept(id)
        assert rule.is_complete == is_action
        assert ("more" in template.decode(rule.answer)) == (not is_action)


def test_a_question_may_be_thought_about(tiny_chat_model: LocalModel, page: Page) -> None:
    conversation = begin(tiny_chat_model, temperature=1.0, thinking=6, max_new_tokens=12)
    reply = conversation.answer("what?", page)
    assert reply.thinking and reply.thinking not in reply.text


def test_a_model_that_does_not_think_is_named(tiny_model: LocalModel) -> None:
    with pytest.raises(ValueError, match="tiny cannot think"):
        begin(tiny_model, thinking=10)
    with pytest.raises(ValueError, match="thinking: expected greater than or equal to 0, found -1"):
        begin(tiny_model, thinking=-1)


texts = st.text(max_size=20)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["link", "textbox", "button"]), texts), max_size=6))
def test_constrained_replies_parse_on_any_page(
    tiny_model: LocalModel, elements: list[tuple[str, str]]
) -> None:
    box = Box(0, 0, 1, 1)
    nodes = tuple(Node("element", role, name, box, id=i) for i, (role, name) in enumerate(elements))
    page = Page("http://a.localhost/", "<|end|> ```click [1]```", nodes)
    action = parse(extract(begin(tiny_model, temperature=1.0).reply(page).text))
    assert action.element_id is None or action.element_id < len(nodes)


def test_free_greedy_replies_are_the_likeliest_tokens_after_the_whole_stream(
    tiny_model: LocalModel, page: Page
) -> None:
    conversation = begin(tiny_model, decoding="free", max_new_tokens=12, cache_dtype="float32")
    template, model = tiny_model.template, tiny_model.model
    stream = template.opening("find the kayak")
    for turn in range(3):
        reply = conversation.reply(page, note="error: x" if turn else "")
        stream += template.turn(reply.observation, "error: x" if turn else "")
        ids: list[int] = []
        while len(ids) < 12:
            with torch.no_grad():
                id = int(model(torch.tensor([stream + ids])).logits[0, -1].argmax())
            if id in template.end_ids:
                break
            ids.append(id)
        assert reply.text == template.decode(ids)
        assert reply.num_tokens_out == len(ids)
        stream += [*ids, *template.separator]


@pytest.mark.parametrize("pins", [True, False])
def test_the_goal_stays_in_the_cache_of_a_window_if_it_is_pinned(
    tiny_model: LocalModel, page: Page, pins: bool
) -> None:
    conversation = begin(tiny_model, "window", budget=64, temperature=1.0, pins=pins)
    goal = range(len(tiny_model.template.opening("find the kayak")))
    for _ in range(3):
        conversation.reply(page)
        kept = {int(place) for place in conversation.cache.kept(1)[0][0]}
        assert set(goal) <= kept if pins else kept.isdisjoint(goal)
    conversation.cache.check()


def test_goal_pages_and_replies_are_labelled(tiny_model: LocalModel, page: Page) -> None:
    conversation = begin(tiny_model, temperature=1.0)
    template, texts = tiny_model.template, ["find the kayak"]
    expected = [("goal", template.opening("find the kayak"))]
    for turn in range(3):
        reply = conversation.reply(page, note="error: x" if turn else "")
        expected.append(
            (f"page {turn}", template.turn(reply.observation, "error: x" if turn else ""))
        )
        texts += [reply.observation, reply.text]
    ids, spans = conversation.cache.ids, conversation.cache.spans()
    assert ids is not None
    labels = ["goal", *(f"{what} {turn}" for turn in range(3) for what in ("page", "reply"))]
    assert [span.label for span in spans] == labels
    found = {span.label: ids[0, span.start : span.stop].tolist() for span in spans}
    for label, tokens in expected:
        assert found[label] == tokens
    assert template.decode(found["reply 0"]) == texts[2]


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("last_pages", [1, 2, 4, None])
@pytest.mark.sample("values")
def test_older_pages_leave_their_heads_and_replies_in_the_cache(
    tiny_model: LocalModel, page: Page, last_pages: int | None, rebuild: bool
) -> None:
    conversation = begin(tiny_model, temperature=1.0, last_pages=last_pages, rebuild=rebuild)
    template, notes = tiny_model.template, ["", "error: x", "error: y", ""]
    empty = serialize(replace(page, nodes=()), layout=template.layout).text
    for number, note in enumerate(notes):
        shown = conversation.reply(page, note).observation
        ids = conversation.cache.ids
        assert ids is not None
        spans = {span.label: ids[0, span.start : span.stop] for span in conversation.cache.spans()}
        expected = template.opening("find the kayak")
        for turn in range(number + 1):
            is_readable = last_pages is None or turn > number - last_pages
            expected += template.turn(shown if is_readable else empty, notes[turn])
            expected += spans[f"reply {turn}"].tolist()
        kept = conversation.cache.kept(1)[0][0]
        assert ids[0, kept.long()].tolist() == expected
        conversation.cache.check()


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("last_pages", [1, 2])
def test_of_older_pages_only_the_notes_of_their_replies_stay(
    tiny_model: LocalModel, page: Page, last_pages: int, rebuild: bool
) -> None:
    options: dict[str, Any] = {"last_pages": last_pages, "rebuild": rebuild, "temperature": 1.0}
    conversation = begin(tiny_model, notes_only=True, **options)
    template, turns = tiny_model.template, []
    for number in range(7):
        reply = conversation.reply(page, "error: x")
        notes = notes_in(reply.text, template.thoughts)
        turns.append((template.turn(reply.observation, "error: x"), reply.text, notes))
        expected = template.opening("find the kayak")
        for turn, (shown, text, notes) in enumerate(turns):
            is_readable = turn > number - last_pages
            expected += shown if is_readable else template.turn("")
            expected += template.reply(text) if is_readable else template.encode(notes)
            expected += () if is_readable else template.separator
        kept = conversation.cache.kept(1)[0][0].long()
        assert conversation.cache.ids is not None
        found = conversation.cache.ids[0, kept].tolist()
        # a reply was not written in the tokens that its text encodes to, and the end of the newest
        # one is fed with the next page
        assert template.decode(expected).startswith(template.decode(found))
        specials = [[id for id in ids if id < 4] for ids in (found, expected)]
        assert specials[0] == specials[1][: len(specials[0])]
        conversation.cache.check()
    assert any(notes for _, _, notes in turns)


def test_only_tokens_before_one_that_is_chosen_look_back(
    tiny_model: LocalModel, page: Page
) -> None:
    policy = agentkv.policy("lookback", when="always", reads="hot", slack=0)
    conversation = begin(tiny_model, policy, budget=48, temperature=1.0)
    for turn in range(3):
        pending = conversation.start_reply(page)
        batch, num_chosen, num_fed = Batch(tiny_model.model), 0, 0
        batch.add(pending.generation)
        before = conversation.cache.num_looks
        while len(batch):
            num_chosen += pending.generation.samples_next
            num_fed += 1
            batch.step()
        conversation.finish_reply(pending)
        assert conversation.cache.num_looks - before == num_chosen
        assert turn or 0 < num_chosen < num_fed
    conversation.cache.check()


def test_a_rebuilt_prompt_counts_every_token_that_it_reads_again(
    tiny_model: LocalModel, page: Page
) -> None:
    conversation = begin(tiny_model, temperature=1.0, last_pages=1, rebuild=True)
    num_seen, peak = 0, 0
    for turn in range(3):
        reply = conversation.reply(page)
        cache = conversation.cache
        num_seen, peak = num_seen + cache.seen, max(peak, cache.peak_nbytes)
        assert reply.cache is not None
        assert (reply.cache.seen_tokens, reply.cache.peak_bytes) == (num_seen, peak)
        assert reply.cache.live_bytes == cache.nbytes
        assert cache.seen >= reply.num_tokens_in > turn * len(tiny_model.template.opening("goal"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"last_pages": 0}, "last_pages: expected greater than or equal to 1, found 0"),
        ({"last_pages": 2, "observations": "changes"}, "last_pages=2 forgets them"),
        ({"notes_only": True}, "give last_pages=1 as well"),
    ],
)
def test_numbers_of_pages_that_make_no_sense_are_refused(
    tiny_model: LocalModel, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        begin(tiny_model, **options)


def test_a_goal_that_its_budget_cannot_hold_is_refused_before_the_first_page(
    tiny_model: LocalModel,
) -> None:
    acting = tiny_model.with_cache("window", budget=4)
    with pytest.raises(ValueError, match="pinned tokens .* smallest budget of 4"):
        acting.begin("find the kayak and put it into the cart")
    tiny_model.with_cache("window", budget=4, pins=False).begin("find the kayak and put it")


def test_every_token_is_fed_once(tiny_model: LocalModel, page: Page) -> None:
    conversation = begin(tiny_model, temperature=1.0)
    num_fed = 0
    for _ in range(4):
        reply = conversation.reply(page)
        num_fed += reply.num_tokens_in + reply.num_tokens_out
        num_pending = len(conversation._stream.pending) - len(tiny_model.template.separator)
        assert reply.cache is not None
        assert reply.cache.seen_tokens == conversation.cache.seen == num_fed - num_pending
        num_fed -= num_pending


def test_feeding_forced_tokens_in_one_chunk_does_not_change_the_reply(
    tiny_model: LocalModel, page: Page
) -> None:
    """Compare with a loop that recomputes the whole stream for every token, forced or sampled."""
    conversation = begin(tiny_model)
    reply = conversation.reply(page)
    template = tiny_model.template
    stream = template.opening("find the kayak") + template.turn(reply.observation)
    matcher = tiny_model.grammar.start(page, "find the kayak")
    ids: list[int] = []
    while not matcher.is_complete:
        with torch.no_grad():
            logits = tiny_model.model(torch.tensor([stream + ids])).logits[0, -1]
        allowed = matcher.allowed()
        forced = matcher.forced()
        best = int(logits[: len(allowed)].masked_fill(~allowed, -torch.inf).argmax())
        ids.append(forced[0] if forced else best)
        matcher.consume(ids[-1:])
    assert template.decode(ids) == reply.text


def test_only_equal_seeds_give_equal_replies(tiny_model: LocalModel, page: Page) -> None:
    acting = tiny_model.with_cache("full", temperature=1.0)

    def replies(seed: int) -> list[str]:
        conversation = acting.begin("goal", seed=seed)
        return [conversation.reply(page).text for _ in range(2)]

    assert replies(1) == replies(1) != replies(2)


def test_a_deadline_that_passed_stops_decoding(tiny_model: LocalModel, page: Page) -> None:
    with pytest.raises(TimeoutError):
        begin(tiny_model).reply(page, deadline=time.monotonic() - 1)
    with pytest.raises(TimeoutError):
        begin(tiny_model, decoding="free").reply(page, deadline=time.monotonic() - 1)


def test_a_turn_beyond_the_context_limit_is_rejected_before_it_is_read(
    short_model: LocalModel, page: Page
) -> None:
    conversation = begin(short_model, max_new_tokens=64)
    with pytest.raises(ContextLimit, match="512 positions"):
        for _ in range(10):
            seen = conversation.cache.seen
            conversation.reply(page)
    assert conversation.cache.seen == seen < 512


def test_a_page_is_cut_to_its_budget(tiny_model: LocalModel, page: Page) -> None:
    nodes = page.nodes * 30
    long = Page(page.url, page.title, nodes)
    reply = begin(tiny_model, observation_tokens=200).reply(long)
    assert tiny_model.template.count(reply.observation) < 220
    assert "cut: " in reply.observation


def test_an_unknown_policy_is_an_error_before_the_first_episode(tiny_model: LocalModel) -> None:
    with pytest.raises(ValueError, match="known"):
        tiny_model.with_cache("conf-vk")


def test_an_unknown_model_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"unknown model 'nanno'.*known by name: nano"):
        load_model("nanno")


def test_a_missing_hub_id_says_how_to_download_it() -> None:
    with pytest.raises(ModelError, match=r"hf download agentkv-tests/no-such-model"):
        load_model("agentkv-tests/no-such-model")


def test_an_incomplete_model_folder_lists_its_missing_files(tmp_path: object) -> None:
    with pytest.raises(ModelError, match=r"config\.json, tokenizer\.json, weights .* missing"):
        load_model(str(tmp_path))


def test_a_saved_model_gives_the_same_replies_once_loaded(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: LocalModel, page: Page
) -> None:
    folder = tmp_path_factory.mktemp("model")
    tiny_model.model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tiny_model.tokenizer, eos_token="<|end|>"
    ).save_pretrained(folder)
    loaded = load_model(folder, device="cpu")
    assert begin(loaded).reply(page).text == begin(tiny_model).reply(page).text


def test_a_model_without_an_end_token_is_rejected() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(_NO_END))
    with pytest.raises(ModelError, match="no end token|end token"):
        local_model(torch.nn.Module(), tokenizer, name="endless")


_NO_END = '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[]}}'


def test_an_agent_runs_a_loaded_model_under_its_policy(tiny_model: LocalModel) -> None:
    assert Agent(tiny_model, "window", budget=64).model.name == "tiny"
    with pytest.raises(ValueError, match="known"):
        Agent(tiny_model, "conf-vk")


def test_free_replies_may_fail_to_parse(tiny_model: LocalModel, page: Page) -> None:
    with pytest.raises(ActionError):
        parse(extract(begin(tiny_model, decoding="free", max_new_tokens=8).reply(page).text))


def test_observations_of_changes_show_only_new_lines_of_a_page_seen_before(
    tiny_model: LocalModel, page: Page
) -> None:
    more = Node("element", "button", "Undo", Box(0, 0, 9, 9), id=77)
    later = replace(page, nodes=(*page.nodes, more))
    conversation = begin(tiny_model, observations="changes")
    first, second = conversation.reply(page), conversation.reply(later)
    assert first.observation == begin(tiny_model).reply(page).observation
    num_lines = len(first.observation.splitlines()) - 3
    assert second.observation.splitlines()[2:] == [
        f"same: {num_lines} lines",
        "button Undo [77]",
        "more below",
    ]
    whole = begin(tiny_model)
    whole.reply(page)
    assert "same:" not in whole.reply(later).observation
    _, action = conversation.reply(page), parse(extract(conversation.reply(later).text))
    assert action.element_id is None or later.element(action.element_id) is not None
