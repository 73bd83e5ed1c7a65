"""A client edits earlier messages, and the session's cache follows: what is gone is dropped, what
is new in its place is read there, and everything after it stays."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from agentkv.dialog.messages import Chat, MessageTemplate
from agentkv.models.load import local_model
from agentkv.models.local import LocalModel
from agentkv.serve.edits import EditBasis, _edited_ids, common_blocks, num_kept, plan_edits
from agentkv.serve.session import EMPTY, Place, ResumePoint, Said, ServedSession, chat_history
from agentkv.serve.settings import EditMode
from agentkv.serve.waiting import Prompts, _key
from tests.agentkv.agent.conftest import random_llama
from tests.agentkv.agent.test_chat_templates import FAMILIES, NAMES, tokenizer_of
from tests.agentkv.serve.conftest import CHATML, REWRITING, TOOL_TEMPLATE, Served, serving
from tests.agentkv.serve.test_calls import trained as trained
from tests.agentkv.serve.test_reuse import reuse
from tests.agentkv.serve.test_sessions import WORDS, ask, system, user, with_reply
from tests.sampling import sampled

KEEP: Any = {"extra_body": {"agentkv": {"edits": "keep"}}}
REPLY = {"role": "assistant", "content": "fine"}
EXACT: Any = {"extra_body": {"agentkv": {"edits": "exact"}}}


@pytest.fixture(scope="module")
def local(chat_model: Callable[[str], LocalModel]) -> LocalModel:
    return chat_model(CHATML)


@pytest.fixture
def served(local: LocalModel) -> Iterator[Served]:
    with serving(local, policies=("full", "int4"), budget=None, keys=("ann",)) as served:
        yield served


def text(number: int) -> str:
    """A text that no other message has."""
    return f"{number * 7919 % 900 + 100} {WORDS[: 20 + number % 40]}"


def talk(served: Served, turns: int, first: Sequence[Any] = (), **options: Any) -> list[Any]:
    """Return a conversation of some turns."""
    messages = [*first]
    for number in range(turns):
        messages = [*messages, user(text(number))]
        messages = with_reply(messages, ask(served, messages, **options))
    return messages


def session(served: Served) -> ServedSession:
    """The session that was used last; its bookkeeping agrees with its cache."""
    latest = max(served.engine.sessions, key=lambda each: each.used_at)
    cache = latest.cache
    assert cache is not None
    cache.check()
    held = [place for place, id in enumerate(latest.ids) if id != EMPTY]
    assert len(latest.ids) == cache.seen == latest.end.seen
    assert latest.end.num_empty == cache.seen - len(held)
    if cache.policy.name in ("full", "int4"):
        assert all(
            heads[0].tolist() == held for layer in (0, 1) for heads in [cache.kept(layer)[0]]
        )
    return latest


def stream(served: Served) -> str:
    """The text of the latest session."""
    return served.engine.template.decode([id for id in session(served).ids if id != EMPTY])


# ---- through the server


@pytest.mark.parametrize("policy", ["full", "int4"])
def test_removed_messages_are_dropped_and_the_rest_is_kept(served: Served, policy: str) -> None:
    settings: Any = {"extra_body": {"agentkv": {"policy": policy}}}
    before = talk(served, 6, [system("Be brief.")], **settings)
    edited = [*before[:3], *before[7:], user("and now?")]
    answer = ask(served, edited, **settings)
    told = reuse(answer)
    assert told["how"] == "edited" and told["differs_at"] == {"message": 3, "character": 0}
    assert told["forgotten"] > 40 and told["kept"] > 100 and told["read"] < 40
    found = stream(served)
    assert [text(number) in found for number in range(6)] == [True, False, False, True, True, True]
    held = sum(id != EMPTY for id in session(served).ids)
    # the last token of a reply is not read
    assert held == answer.usage.prompt_tokens + answer.usage.completion_tokens - 1
    again = reuse(ask(served, [*with_reply(edited, answer), user("more")], **settings))
    assert again["how"] == "continued" and again["forgotten"] == 0


def test_a_host_that_removes_most_of_a_conversation_goes_on_in_it(served: Served) -> None:
    before = talk(served, 9, [system("Be brief.")])
    told = reuse(ask(served, [before[0], *before[-4:], user("and now?")]))
    assert told["how"] == "edited" and told["forgotten"] > 200 and told["read"] < 40
    session(served)


def test_another_conversation_with_the_same_instructions_and_reply_edits_nothing(
    served: Served,
) -> None:
    before = talk(served, 5, [system(WORDS)], **KEEP)
    answer = ask(served, [system(WORDS), user("else"), before[-1], user("and?")], **KEEP)
    assert reuse(answer)["how"] != "edited"
    assert len(list(served.engine.sessions)) == 2


def test_a_shortened_message_loses_its_tokens_alone(served: Served) -> None:
    before = talk(served, 4)
    whole = before[2]["content"]
    shortened = [*before]
    shortened[2] = user(whole[: whole.rindex(" ", 0, len(whole) - 9)])
    told = reuse(ask(served, [*shortened, user("and now?")]))
    assert told["how"] == "edited"
    assert 0 < told["forgotten"] <= len(whole)
    found = stream(served)
    assert whole not in found and f"user\n{shortened[2]['content']}<|im_end|>" in found


def test_text_that_is_new_is_read_in_its_place_only_if_it_is_asked_for(served: Served) -> None:
    before = talk(served, 4, [system(f"Today is Monday. {WORDS}")])
    changed = [system(f"Today is Tuesday. {WORDS}"), *before[1:], user("and now?")]
    assert reuse(ask(served, changed))["how"] == "new"
    before = talk(served, 4, [system(f"Today is Monday. {WORDS}")], **KEEP)
    answer = ask(served, changed, **KEEP)
    told = reuse(answer)
    assert told["how"] == "edited" and told["differs_at"] == {"message": 0, "character": 9}
    assert told["kept"] > 200 and told["read"] < 40
    found = stream(served)
    assert "Monday" not in found and found.startswith("<|im_start|>system\nToday is Tuesday. ")
    assert session(served).cache.seen > len(before)  # type: ignore[union-attr]


def test_exact_goes_back_and_reads_again(served: Served) -> None:
    before = talk(served, 4, **EXACT)
    told = reuse(ask(served, [*before[:2], *before[4:], user("and now?")], **EXACT))
    assert told["how"] != "edited" and told["read"] > 60


def test_exact_reads_from_where_a_message_begins_to_differ(served: Served) -> None:
    before = talk(served, 4, **EXACT)
    for place in (2, 4, 6):  # the later ones lie in what the first one had read again
        whole = before[place]["content"]
        half = whole[: len(whole) // 2]
        before[place] = user(f"{half} otherwise {place}")
        told = reuse(ask(served, [*before, user("and now?")], **EXACT))
        later = [before[place] | {"content": f" otherwise {place}"}, *before[place + 1 :]]
        rest = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>" for each in later)
        rest += "<|im_start|>user\nand now?<|im_end|><|im_start|>assistant\n"
        num_tokens = len(served.engine.template.encode_prompt(rest, begins=True))
        assert 0 < told["read"] <= num_tokens + len(later)
        labels = [each.label for each in session(served).cache.spans()]  # type: ignore[union-attr]
        assert len(labels) == len(set(labels))


@pytest.fixture
def storing(local: LocalModel, tmp_path: Path) -> Callable[[], AbstractContextManager[Served]]:
    """Return a function that starts a server with the sessions of the one before."""
    return lambda: serving(local, policies=("full",), budget=None, keys=("ann",), store=tmp_path)


def with_other_instructions(served: Served, turns: int, old: str, new: str) -> list[Any]:
    """Return a conversation of some turns whose instructions were edited before the last reply."""
    before = talk(served, turns, [system(f"{old} {WORDS}")], **KEEP)
    changed = [system(f"{new} {WORDS}"), *before[1:], user("and now?")]
    answer = ask(served, changed, **KEEP)
    assert reuse(answer)["how"] == "edited"
    return with_reply(changed, answer)


def test_pinned_instructions_that_become_shorter_leave_a_whole_session(
    storing: Callable[[], AbstractContextManager[Served]],
) -> None:
    with storing() as served:
        before = with_other_instructions(served, 3, "Be brief today and always.", "Be fun.")
        session(served).cache.fork().check()  # type: ignore[union-attr]
    with storing() as served:
        assert reuse(ask(served, [*before, user("more")], **KEEP))["how"] == "continued"


def test_a_waiting_request_is_encoded_once_while_others_take_turns(
    local: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, num_encoded = Prompts.new_ids, 0

    def slow(self: Prompts, job: Any, *others: Any) -> Any:
        nonlocal num_encoded
        if "LONG" in job.prompt.messages[0]["content"]:
            num_encoded += 1
            time.sleep(0.5)
        return found(self, job, *others)

    monkeypatch.setattr(Prompts, "new_ids", slow)
    with serving(local, policies=("full",), budget=None, keys=("ann",)) as served:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, served, [user("LONG " + WORDS)])
            messages: list[Any] = [user("hi")]
            while not asked.done():
                with served.client("ann") as client:
                    answer = client.chat.completions.create(
                        model="tiny", messages=messages, max_tokens=2
                    )
                messages = [*with_reply(messages, answer), user("on")][-31:]
        asked.result()
    assert num_encoded == 1


def test_exact_keeps_nothing_that_was_read_after_another_text(served: Served) -> None:
    before = with_other_instructions(served, 4, "Today is Monday.", "Today is Tuesday.")
    before = [*before, user("more")]
    before[-5] = user("otherwise")
    assert reuse(ask(served, before, **KEEP))["kept"] > 200
    before[-5] = user("still otherwise")
    assert reuse(ask(served, before, **EXACT))["kept"] == 0


def test_a_restart_remembers_what_was_read_after_another_text(
    storing: Callable[[], AbstractContextManager[Served]],
) -> None:
    with storing() as served:
        before = with_other_instructions(served, 4, "Today is Monday.", "Today is Tuesday.")
    with storing() as served:
        before = [*before, user("more")]
        assert reuse(ask(served, before, **KEEP))["how"] == "continued"
        assert reuse(ask(served, before, **KEEP))["kept"] > 200
        assert reuse(ask(served, [before[0], user("new")], **EXACT))["kept"] == 0


def test_a_request_that_comes_again_reads_one_token(served: Served) -> None:
    before = [*talk(served, 2, **EXACT), user("and now?")]
    one, two = (ask(served, before, **EXACT) for _ in range(2))
    assert reuse(two)["how"] == "returned" and reuse(two)["read"] == 1
    assert two.choices[0].message.content == one.choices[0].message.content
    session(served)


EXACTLY = ["chatml", "rewriting", "llama-3-instruct", "qwen2.5-instruct", "gemma-3-1b-it"]


@pytest.mark.parametrize("template", EXACTLY)
def test_random_edits_are_answered_as_by_a_model_that_reads_everything(
    template: str,
    chat_model: Callable[[str], LocalModel],
    family_model: Callable[[str], LocalModel],
) -> None:
    own = {"chatml": CHATML, "rewriting": REWRITING}.get(template)
    local = chat_model(own) if own else family_model(template)
    choices = random.Random(template)
    first: list[Any] = [user(WORDS), REPLY]
    messages, num_kept = first, 0
    with serving(local, policies=("full",), budget=None, keys=("ann",)) as served:
        for number in range(16):
            changed = edited(messages[2:], choices, number)
            messages = [*first, *changed, user(f"{text(number)} {number}")]
            headers = {"X-AgentKV-Session": "mine"}
            answer = ask(served, messages, extra_headers=headers, **EXACT)
            num_kept += reuse(answer)["kept"] > 0
            latest, usage = session(served), answer.usage
            ids = [*latest.ids, *latest.end.unread]
            reply = slice(usage.prompt_tokens, usage.prompt_tokens + usage.completion_tokens)
            found, at = served.engine.template.decode(ids[: reply.start]), 0
            for message in messages:
                if message["role"] == "user":
                    at = found.index(message["content"].strip(), at) + 1
            with torch.no_grad():
                logits = local.model(torch.tensor([ids])).logits[0]
            own = logits[reply.start - 1 : reply.stop - 1]
            lacks = own.amax(dim=-1) - own.gather(1, torch.tensor(ids[reply])[:, None])[:, 0]
            # entries have 16 bits here
            assert lacks.max() < own.std() / 20
            messages = with_reply(messages, answer)
    assert num_kept == 15


def test_a_turn_is_taken_back_without_a_snapshot_if_rounding_may_stay(local: LocalModel) -> None:
    with serving(local, policies=("int4",), budget=None, snapshots=1, keys=("ann",)) as served:
        before = talk(served, 8)
        told = reuse(ask(served, [*before[:8], user("otherwise")], **KEEP))
        assert told["how"] == "returned" and told["read"] < 40 < told["forgotten"]
        session(served)
        before = talk(served, 8)
        assert reuse(ask(served, [*before[:8], user("otherwise")]))["kept"] == 0


@pytest.mark.parametrize("policy", ["window", "lookback-int8"])
def test_a_policy_that_evicts_drops_and_reads_nothing_in_the_middle(
    local: LocalModel, policy: str
) -> None:
    with serving(local, policies=(policy,), budget=128, keys=("ann",)) as served:
        before = talk(served, 5, **KEEP)
        removed = reuse(ask(served, [*before[:4], *before[6:], user("and now?")], **KEEP))
        assert removed["how"] == "edited"
        session(served)
        before = talk(served, 5, **KEEP)
        changed = [user("something else"), *before[1:], user("and now?")]
        assert reuse(ask(served, changed, **KEEP))["how"] == "new"


def test_outputs_of_tools_are_replaced_by_a_short_note(
    chat_model: Callable[[str], LocalModel],
) -> None:
    def called(number: int) -> list[Any]:
        function = {"name": "look", "arguments": f'{{"at": {number}}}'}
        call = {"id": f"call0000{number}", "type": "function", "function": function}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": text(number) * 3},
        ]

    tools = [{"type": "function", "function": {"name": "look"}}]
    messages = [user("What is there?"), *(each for n in range(4) for each in called(n))]
    options: Any = {"tools": tools, **KEEP}
    with serving(
        chat_model(TOOL_TEMPLATE), policies=("full",), budget=None, keys=("ann",)
    ) as served:
        before = with_reply(messages, ask(served, messages, **options))
        for number in (1, 2):
            before[2 * number] = {**before[2 * number], "content": "[cleared]"}
        answer = ask(served, [*before, user("and now?")], **options)
        told, found = reuse(answer), stream(served)
    assert told["how"] == "edited" and told["forgotten"] > 60 and told["read"] < 60
    assert [text(number) in found for number in range(4)] == [False, False, True, True]
    assert found.count("[cleared]") == 2


def test_a_session_on_disk_is_edited_too(local: LocalModel, tmp_path: Path) -> None:
    with serving(local, policies=("full",), budget=None, store=tmp_path, keys=("ann",)) as served:
        before = talk(served, 5)
        ask(served, [*before[:2], *before[4:], user("and now?")])
        (only,) = served.engine.sessions
        served.engine.call(lambda: served.engine.sessions.spill(only)).result()
        before = [*before[:2], *before[6:]]
    with serving(local, policies=("full",), budget=None, store=tmp_path, keys=("ann",)) as served:
        (only,) = served.engine.sessions
        assert only.end.num_empty > 0
        messages = [*before, user("and now?")]
        # the reply to the edited conversation was its last one, and is not known here
        assert reuse(ask(served, messages))["how"] in ("new", "returned")


def test_a_session_of_an_earlier_server_is_edited(local: LocalModel, tmp_path: Path) -> None:
    with serving(local, policies=("full",), budget=None, store=tmp_path, keys=("ann",)) as served:
        before = talk(served, 5)
    with serving(local, policies=("full",), budget=None, store=tmp_path, keys=("ann",)) as served:
        told = reuse(ask(served, [*before[:2], *before[4:], user("and now?")]))
        assert told["how"] == "edited" and told["kept"] > 60
        session(served)


def test_positions_that_dropped_tokens_leave_are_won_back_when_they_are_needed(
    chat_tokenizer: Callable[..., Any],
) -> None:
    tokenizer = chat_tokenizer(CHATML)
    model = local_model(random_llama(len(tokenizer), max_positions=420), tokenizer, name="tiny")
    with serving(model, policies=("full",), budget=None, keys=("ann",)) as served:
        messages = talk(served, 1)
        ways = []
        for number in range(1, 14):
            # the last two turns stay
            messages = [*messages[-4:], user(text(number))]
            answer = ask(served, messages)
            ways.append(reuse(answer)["how"])
            messages = with_reply(messages, answer)
            session(served)
    assert ways.count("edited") > 6 and {"lost", "new"} & set(ways), ways


def test_a_label_that_was_dropped_by_hand_leaves_a_session_that_can_be_edited(
    served: Served,
) -> None:
    before = talk(served, 5)
    sessions, own = served.engine.sessions, session(served)
    assert own.cache is not None
    label = next(each.label for each in own.cache.spans() if each.start > 30)
    served.engine.call(lambda: sessions.change_span(own, label, "drop")).result()
    assert session(served).end.num_empty > 0
    answer = ask(served, [*before, user("and now?")])
    assert reuse(answer)["how"] == "continued"
    before = with_reply([*before, user("and now?")], answer)
    told = reuse(ask(served, [*before[2:], user("more")]))
    assert told["how"] == "edited" and told["kept"] > 40
    session(served)


def test_a_reply_that_goes_on_from_a_text_alone_has_no_messages_before_it(served: Served) -> None:
    text: Any = {"role": "assistant", "content": "The boat is"}
    options: Any = {"extra_body": {"continue_final_message": True}}
    answer = ask(served, [text], **options)
    whole = {**text, "content": "The boat is" + answer.choices[0].message.content}
    assert reuse(ask(served, [whole, user("more")]))["how"] in ("continued", "new")


def test_no_other_word_says_how_messages_are_edited(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match=r"agentkv\.edits"):
        ask(served, [user("hello")], extra_body={"agentkv": {"edits": "sometimes"}})


SOME = ["llama-3-instruct", "qwen2.5-instruct", "gemma-3-1b-it"]


@pytest.mark.parametrize(
    ("template", "options", "least"),
    [(each, KEEP, 10) for each in ("chatml", "rewriting", *SOME)] + [("chatml", {}, 3)],
)
def test_random_edits_of_random_conversations_leave_what_was_asked(
    template: str,
    options: Any,
    least: int,
    chat_model: Callable[[str], LocalModel],
    family_model: Callable[[str], LocalModel],
) -> None:
    """Messages are removed, shortened, replaced, moved, appended and taken back."""
    own = {"chatml": CHATML, "rewriting": REWRITING}.get(template)
    local = chat_model(own) if own else family_model(template)
    choices = random.Random(template)
    ways: list[str] = []
    with serving(local, policies=("full",), budget=None, keys=("ann",)) as served:
        messages: list[Any] = []
        for number in range(24):
            messages = edited(messages, choices, number)
            messages = [*messages, user(f"{text(number)} {number}")]
            headers = {"X-AgentKV-Session": "mine"}
            answer = ask(served, messages, extra_headers=headers, **options)
            messages = with_reply(messages, answer)
            ways.append(reuse(answer)["how"])
            found, at = stream(served), 0
            for message in messages[:-1]:
                if message["role"] == "user":
                    at = found.index(message["content"], at) + len(message["content"])
            asked = [each["content"] for each in messages if each["role"] == "user"]
            assert sum(found.count(each) for each in set(asked)) >= len(asked)
            for gone in set(map(text, range(number))):
                if not any(gone in each["content"] for each in messages):
                    assert f"{gone} " not in found
    assert ways.count("edited") >= least, ways


def edited(messages: list[Any], choices: random.Random, number: int) -> list[Any]:
    """Return a conversation with some earlier turns changed."""
    turns = [messages[at : at + 2] for at in range(0, len(messages), 2)]
    if len(turns) < 3:
        return messages
    at = choices.randrange(len(turns) - 1)
    match choices.choice(["remove", "shorten", "replace", "move", "append", "undo"]):
        case "remove":
            del turns[at]
        case "shorten":
            words = turns[at][0]["content"]
            turns[at] = [user(words[: max(5, len(words) // 2)]), turns[at][1]]
        case "replace":
            turns[at] = [user(f"other {number} {text(number)[:9]}"), turns[at][1]]
        case "move":
            turns.insert(0, turns.pop(at))
        case "undo":
            del turns[-1]
    return [message for turn in turns for message in turn]


# ---- the plan alone


Piece = tuple[int, ...]
PIECES = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple)


@st.composite
def edited_streams(draw: st.DrawFn) -> tuple[list[Piece], list[Piece]]:
    """Pieces of an old conversation and of an edited one, which has some of them."""
    old = draw(st.lists(PIECES, min_size=1, max_size=6))
    new = draw(
        st.lists(st.one_of(st.sampled_from(old), PIECES), min_size=1, max_size=7)
        if draw(st.booleans())
        else st.lists(st.booleans(), min_size=len(old), max_size=len(old))
        .map(lambda keep: [piece for piece, stays in zip(old, keep, strict=True) if stays])
        .filter(bool)
    )
    return old, new


def planned(old: list[Piece], new: list[Piece], mode: EditMode, reply: Piece) -> Any:
    def messages(pieces: list[Piece]) -> list[Any]:
        return [*(user(str(piece)) for piece in pieces), {"role": "assistant", "content": "end"}]

    ids = [id for piece in old for id in piece]
    stops = [sum(map(len, old[:number])) for number in range(len(old) + 1)]
    held = chat_history(Chat(messages(old)))
    basis = EditBasis(
        "s",
        held,
        tuple(map(Place, stops, stops[1:])),
        (*ids, *reply),
        ResumePoint(len(held), len(ids) + len(reply), len(old) + 1),
        can_replace=True,
        can_grow=True,
        mode=mode,
    )
    chat = Chat([*messages(new), user("next")])
    return basis, plan_edits(basis, chat, chat_history(chat), [*new, reply, (9,)])


@given(edited_streams(), PIECES)
@example(streams=([(0, 0), (0,)], [(0,), (0, 0)]), reply=(0,))
def test_edits_make_the_stream_what_is_asked(
    streams: tuple[list[Piece], list[Piece]], reply: Piece
) -> None:
    old, new = streams
    basis, plan = planned(old, new, "keep", reply)
    if plan is None:  # the same ids in other pieces are the same stream
        assert sum(old, ()) == sum(new, ())
        return
    ids = _edited_ids(basis.ids, plan.edits)
    assert [id for id in ids if id != EMPTY] == [*(id for piece in new for id in piece), *reply]
    for place, piece in zip(plan.places, new, strict=True):
        assert tuple(id for id in ids[place.start : place.stop] if id != EMPTY) == piece
    assert len(ids) == plan.point.seen and ids.count(EMPTY) == plan.point.num_empty
    assert plan.num_dropped == sum(edit.num_gone for edit in plan.edits)
    same = plan.num_same - 1
    assert old[: max(0, same)] == new[: max(0, same)]


@given(edited_streams(), PIECES)
def test_removals_read_nothing(streams: tuple[list[Piece], list[Piece]], reply: Piece) -> None:
    old, new = streams
    _, kept = planned(old, new, "keep", reply)
    _, plan = planned(old, new, "removals", reply)
    if kept is None or kept.num_read:
        assert plan is None
    else:
        assert plan == kept and plan.num_dropped > 0


@given(st.lists(st.integers(0, 3), max_size=9), st.lists(st.integers(0, 3), max_size=9))
def test_common_blocks_are_as_many_as_there_can_be(old: list[int], new: list[int]) -> None:
    blocks = common_blocks(old, new)
    assert blocks[-1] == (len(old), len(new), 0)
    assert all(old[i : i + size] == new[j : j + size] for i, j, size in blocks)
    assert all(a[0] + a[2] <= b[0] and a[1] + a[2] <= b[1] for a, b in pairwise(blocks))
    most = max(
        size
        for size in range(len(old) + 1)
        for some in combinations(old, size)
        if any(some == others for others in combinations(new, size))
    )
    assert sum(size for _, _, size in blocks) == most


def test_messages_that_repeat_thousands_of_times_hold_no_other_request_up() -> None:
    choices = random.Random(3)
    old, new = (["all", *choices.choices("ab", k=20_000), "end"] for _ in range(2))
    began = time.process_time()
    assert num_kept(tuple(map(Said, old)), tuple(map(Said, new))) >= 2
    assert time.process_time() - began < 1.0
    swapped = [each for n in range(0, 20_000, 2) for each in (n + 1, n)]
    assert sum(size for _, _, size in common_blocks(range(20_000), range(20_000))) == 20_000
    assert sum(size for _, _, size in common_blocks([*range(20_000)], swapped)) == 10_000
    assert time.process_time() - began < 2.0


def test_ids_are_found_again_if_the_session_has_others_of_the_same_number() -> None:
    """Another request may have gone back and forward in between."""
    old, new = (planned([(1, 2), each], [(1, 2)], "keep", (3,))[0] for each in ((4, 5), (6, 7)))
    assert len(old.ids) == len(new.ids) and old.end == new.end
    assert _key(None, old) != _key(None, new)
    assert _key(None, old) == _key(None, planned([(1, 2), (4, 5)], [(1, 2)], "keep", (3,))[0])


# ---- where messages end


def test_a_conversation_of_thousands_of_messages_is_not_rendered_thousands_of_times(
    chat_tokenizer: Callable[..., Any],
) -> None:
    template = MessageTemplate(chat_tokenizer(CHATML))
    chat = Chat([user("a"), REPLY] * 2000)
    opening = [id for part in template.opening(chat) for id in part]
    began = time.process_time()
    assert template.by_message(opening, chat) is None
    assert template.by_message(template.following(chat, 3996), chat, 3996) is not None
    assert time.process_time() - began < 2.0


RENDERS_OTHERWISE = {
    "codeshell-chat",
    "deepseek-v3",
    "gpt-oss",
    "phi-3-mini-128k-instruct",
    "phi-3-mini-4k-instruct",
}
"""Families whose template does not render one message after the other."""


@pytest.mark.parametrize("name", sampled(sorted(FAMILIES) or NAMES, every=12, first=3))
def test_prompts_are_cut_where_messages_end(name: str, trained: str) -> None:
    template = MessageTemplate(tokenizer_of(FAMILIES[name], trained))
    messages = [user("hello one"), REPLY, user("hello two"), REPLY, user("hello three")]
    chat = Chat(messages)
    opening = [id for part in template.opening(chat) for id in part]
    following = template.following(chat, 2)
    whole, later = template.by_message(opening, chat), template.by_message(following, chat, 2)
    if name in RENDERS_OTHERWISE:
        assert whole is None and later is None
        return
    assert whole is not None and later is not None
    assert [id for piece in whole for id in piece] == opening
    assert [id for piece in later for id in piece] == following
    # all messages and the next reply's beginning; the end of a reply and the rest
    assert (len(whole), len(later)) == (6, 5)
    for pieces in (whole, later[1:]):
        for piece, message in zip(reversed(pieces[:-1]), reversed(messages), strict=False):
            assert str(message["content"]) in template.decode(piece)
