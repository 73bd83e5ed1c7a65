"""Replies written in one batch equal the replies that each conversation would get alone."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedTokenizerFast

import agentkv
from agentkv.models.batch import LONG_CHUNK, Batch
from agentkv.models.generation import Generation
from agentkv.models.load import local_model
from agentkv.models.local import LocalConversation, LocalModel, PendingReply
from agentkv.models.model import ContextLimit, Reply
from agentkv.models.sampling import Sampler, sample
from agentkv.policies.registry import policy
from agentkv_env.page import Page
from tests.agentkv.cache.hybrids import fresh


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SETTINGS: tuple[tuple[str, dict[str, object]], ...] = (
    ("full", {}),
    ("conf-kv-int8", {"budget": 96, "chunk": 40}),
    ("snapkv", {"budget": 80, "prefill": "whole"}),
    ("window", {"budget": 64, "decoding": "free", "max_new_tokens": 20}),
    ("full", {"temperature": 1.0}),
    ("h2o", {"budget": 64, "temperature": 0.7, "decoding": "free", "max_new_tokens": 15}),
)


def conversations(model: LocalModel) -> list[LocalConversation]:
    return [
        model.with_cache(policy, **options).begin(f"find kayak {i}", seed=i)  # type: ignore[arg-type]
        for i, (policy, options) in enumerate(SETTINGS)
    ]


def reply_together(
    conversations: list[LocalConversation], pages: list[Page], model: LocalModel
) -> list[Reply]:
    batch = Batch(model.model)
    asked = [
        conversation.start_reply(page)
        for conversation, page in zip(conversations, pages, strict=True)
    ]
    for each in asked:
        batch.add(each.generation)
    while len(batch):
        batch.step()
    return [
        conversation.finish_reply(each)
        for conversation, each in zip(conversations, asked, strict=True)
    ]


def test_batched_replies_equal_replies_written_alone(tiny_model: LocalModel, page: Page) -> None:
    pages = [
        replace(page, title=f"Page {i}", nodes=page.nodes * (1 + i % 3))
        for i in range(len(SETTINGS))
    ]
    shared, alone = conversations(tiny_model), conversations(tiny_model)
    for _ in range(2):
        replies = reply_together(shared, pages, tiny_model)
        expected = [
            conversation.reply(page) for conversation, page in zip(alone, pages, strict=True)
        ]
        for reply, other in zip(replies, expected, strict=True):
            assert replace(reply, prefill_s=0, decode_s=0) == replace(
                other, prefill_s=0, decode_s=0
            )
            assert reply.prefill_s > 0 and reply.decode_s >= 0
        for conversation, other in zip(shared, alone, strict=True):
            assert torch.equal(conversation.cache.ids, other.cache.ids)  # type: ignore[arg-type]
            conversation.cache.check()


def test_replies_may_join_and_leave_between_steps(tiny_model: LocalModel, page: Page) -> None:
    shared, alone = conversations(tiny_model), conversations(tiny_model)
    batch, asked, num_steps = Batch(tiny_model.model), list[PendingReply](), 0
    while len(batch) or len(asked) < len(shared):
        if num_steps % 3 == 0 and len(asked) < len(shared):
            asked.append(shared[len(asked)].start_reply(page))
            batch.add(asked[-1].generation)
        batch.step()
        num_steps += 1
    for conversation, each, other in zip(shared, asked, alone, strict=True):
        assert conversation.finish_reply(each).text == other.reply(page).text


class Normalizations(TorchDispatchMode):
    """Counts the rows of logits of which probabilities are computed."""

    num_rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func in (torch.ops.aten.logsumexp.default, torch.ops.aten._log_softmax.default):
            self.num_rows += args[0].numel() // args[0].shape[-1]
        return func(*args, **(kwargs or {}))


def test_each_reply_of_a_batch_notes_the_probabilities_that_it_wants(
    tiny_model: LocalModel, page: Page
) -> None:
    def replied(*wanted: int | None) -> tuple[list[Generation], int]:
        free = tiny_model.with_cache("full", decoding="free", max_new_tokens=8)
        batch, counted = Batch(tiny_model.model), Normalizations()
        generations = [free.begin("find").start_reply(page).generation for _ in wanted]
        for each, number in zip(generations, wanted, strict=True):
            each.num_logprobs = number
            batch.add(each)
        with counted:
            while len(batch):
                batch.step()
        return generations, counted.num_rows

    (alone,), _ = replied(0)
    expected = [(each.id, pytest.approx(each.value, abs=1e-5)) for each in alone.logprobs]
    (nothing, plain, top), _ = replied(None, 0, 2)
    assert nothing.logprobs == [] and nothing.rule.ids == alone.rule.ids
    assert [(each.id, each.value) for each in plain.logprobs] == expected
    assert [(each.id, each.value) for each in top.logprobs] == expected
    assert [len(each.top) for each in top.logprobs] == [2] * len(expected)
    assert not any(each.top for each in plain.logprobs)
    assert replied(None, None)[1] == 0 < replied(0)[1]


def test_every_token_of_a_short_question_may_look_back(tiny_model: LocalModel, page: Page) -> None:
    looking = policy("lookback", when="always", reads="hot", short=64, slack=0)
    conversation = tiny_model.with_cache(
        looking, budget=96, decoding="free", max_new_tokens=8
    ).begin("find kayak")
    conversation.reply(replace(page, nodes=page.nodes * 8))
    seen, looks = conversation.cache.seen, conversation.cache.num_looks
    reply = conversation.answer("Which?", None)
    assert 8 < reply.num_tokens_in <= 64
    assert conversation.cache.num_looks - looks == conversation.cache.seen - seen


def test_a_step_reads_one_long_chunk_and_advances_replies_in_progress(
    tiny_model: LocalModel, page: Page
) -> None:
    """Pages are read one after another while a reply in progress gets a token in every step."""
    writer = tiny_model.with_cache("full", decoding="free", max_new_tokens=40).begin("goal", seed=0)
    readers = [tiny_model.with_cache("full", chunk=128).begin(f"goal {i}") for i in range(2)]
    batch = Batch(tiny_model.model)
    generation = writer.start_reply(page).generation
    batch.add(generation)
    while generation.prefilled_at is None:
        batch.step()
    pages = [
        reader.start_reply(replace(page, nodes=page.nodes * 24)).generation for reader in readers
    ]
    for each in pages:
        batch.add(each)
    assert all(len(each.next_chunk) > LONG_CHUNK for each in pages)
    num_steps = 0
    while not all(each.prefilled_at for each in pages) and not generation.is_over:
        long = [not each.is_over and len(each.next_chunk) > LONG_CHUNK for each in pages]
        seen = [conversation.cache.seen for conversation in (writer, *readers)]
        batch.step()
        now = [conversation.cache.seen for conversation in (writer, *readers)]
        assert generation.is_over or now[0] > seen[0]
        if all(long):
            assert now[1] == seen[1] or now[2] == seen[2]
        num_steps += 1
    assert num_steps > 4


def test_a_deadline_ends_only_its_own_reply(tiny_model: LocalModel, page: Page) -> None:
    late, early = (tiny_model.with_cache("full").begin("goal", seed=1) for _ in range(2))
    batch = Batch(tiny_model.model)
    gone = late.start_reply(page, deadline=time.monotonic() - 1)
    kept = early.start_reply(page, deadline=time.monotonic() + 100)
    batch.add(gone.generation)
    batch.add(kept.generation)
    while len(batch):
        batch.step()
    with pytest.raises(TimeoutError):
        late.finish_reply(gone)
    assert (
        early.finish_reply(kept).text
        == tiny_model.with_cache("full").begin("goal", seed=1).reply(page).text
    )


def test_an_error_in_a_policy_ends_only_its_own_reply(tiny_model: LocalModel, page: Page) -> None:
    def broken(rows: object) -> torch.Tensor:
        raise RuntimeError("no score")

    bad = tiny_model.with_cache(agentkv.scored("broken", broken), budget=24).begin("goal")
    good = tiny_model.with_cache("full").begin("goal")
    batch = Batch(tiny_model.model)
    asked = [conversation.start_reply(page) for conversation in (bad, good)]
    for each in asked:
        batch.add(each.generation)
    while len(batch):
        batch.step()
    with pytest.raises(RuntimeError, match="no score"):
        bad.finish_reply(asked[0])
    assert (
        good.finish_reply(asked[1]).text
        == tiny_model.with_cache("full").begin("goal").reply(page).text
    )


def test_removing_a_reply_does_not_affect_the_others(tiny_model: LocalModel, page: Page) -> None:
    first, second = (tiny_model.with_cache("full").begin("goal", seed=2) for _ in range(2))
    batch = Batch(tiny_model.model)
    dropped, asked = first.start_reply(page), second.start_reply(page)
    batch.add(dropped.generation)
    batch.add(asked.generation)
    batch.step()
    batch.remove(dropped.generation)
    while len(batch):
        batch.step()
    assert not dropped.generation.is_over
    expected = tiny_model.with_cache("full").begin("goal", seed=2).reply(page)
    assert second.finish_reply(asked).text == expected.text


def test_running_out_of_positions_ends_only_one_conversation(
    short_model: LocalModel, page: Page
) -> None:
    full = short_model.with_cache("full", max_new_tokens=64).begin("goal")
    with pytest.raises(ContextLimit):
        for _ in range(10):
            full.start_reply(page)
            full.reply(page)
    fresh = short_model.with_cache("full", max_new_tokens=64).begin("goal")
    assert fresh.reply(page).num_tokens_out


def test_samples_are_allowed_ids_and_follow_their_probabilities() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 12)
    few = torch.zeros(8, dtype=torch.bool)  # from a tokenizer with fewer ids than the model
    few[[2, 5]] = True
    many = torch.ones(20, dtype=torch.bool)  # from a tokenizer with more ids
    greedy = Sampler(0.0, torch.Generator())
    chosen = sample(logits, [few, many, None], [greedy] * 3).tolist()
    assert chosen[0] == (2 if logits[0, 2] > logits[0, 5] else 5)
    assert chosen[1:] == logits[1:].argmax(dim=-1).tolist()

    sampler = Sampler(0.5, torch.Generator().manual_seed(1))
    drawn = [int(sample(logits[:1], [few], [sampler])) for _ in range(4000)]
    share = torch.softmax(logits[0, [2, 5]] / 0.5, dim=0)[0]
    assert set(drawn) <= {2, 5}
    assert drawn.count(2) / 4000 == pytest.approx(float(share), abs=0.03)


def test_sampling_equals_torch_multinomial() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(3))
    sampler = Sampler(0.8, torch.Generator().manual_seed(9))
    theirs = torch.Generator().manual_seed(9)
    for _ in range(50):
        probabilities = torch.softmax(logits[0] / 0.8, dim=-1)
        expected = int(torch.multinomial(probabilities, 1, generator=theirs))
        assert int(sample(logits, [None], [sampler])) == expected


@pytest.fixture
def hybrid(plain_tokenizer: Tokenizer) -> LocalModel:
    """A random model with short convolutions between its layers of attention."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain_tokenizer, eos_token="<|end|>")
    model = fresh("lfm2", vocab_size=plain_tokenizer.get_vocab_size())
    return local_model(model, tokenizer, name="hybrid")


def test_batched_replies_of_a_hybrid_equal_replies_written_alone(
    hybrid: LocalModel, page: Page
) -> None:
    shared, alone = ([hybrid.with_cache("int8").begin(goal) for goal in "ab"] for _ in range(2))
    for _ in range(2):
        replies = reply_together(shared, [page, page], hybrid)
        expected = [conversation.reply(page) for conversation in alone]
        assert [reply.text for reply in replies] == [reply.text for reply in expected]
    for conversation in shared:
        conversation.cache.check()


def test_a_hybrid_forgets_pages_only_by_reading_the_rest_anew(
    hybrid: LocalModel, page: Page
) -> None:
    with pytest.raises(ValueError, match="recurrent states of hybrid hold them; give rebuild=True"):
        hybrid.with_cache("int8", last_pages=1)
    conversation = hybrid.with_cache("int8", last_pages=1, rebuild=True).begin("find kayak")
    for _ in range(2):
        conversation.reply(page)
    conversation.cache.check()
