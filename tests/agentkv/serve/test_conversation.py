"""Conversations through the real client of OpenAI: what is read, what is said, and at what cost."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch

import agentkv
from agentkv.cache.hf.compat import cache_in
from agentkv.models.local import LocalModel
from tests.agentkv.cache.caches_in_use import kept
from tests.agentkv.serve.conftest import CHATML, REWRITING, Served, serving

NUM_TURNS = 12


class ByHand:
    """A conversation on a cache that is fed by hand, greedily."""

    def __init__(self, served: Served, policy: str, budget: int | None, dtype: str) -> None:
        self._model = served.local.model
        self._ends = served.engine.template.end_ids
        self.cache = agentkv.Cache.for_model(
            self._model, policy=policy, budget=budget, chunk=32, dtype=dtype
        )
        self._pending: list[int] = []

    def reply(self, ids: Sequence[int], max_tokens: int) -> tuple[list[int], int]:
        """Feed new ids; return the reply's ids and how many ids were read before it."""
        read = [*self._pending, *ids]
        logits = self.cache.feed(self._model, torch.tensor([read]))
        written: list[int] = []
        self._pending = []
        while True:
            id = int(logits.argmax())
            if id in self._ends:
                return written, len(read)
            written.append(id)
            if len(written) == max_tokens:
                self._pending = [id]
                return written, len(read)
            logits = self.cache.feed(self._model, torch.tensor([[id]]))


def new_ids(served: Served, messages: list[dict[str, Any]], replies: list[list[int]]) -> list[int]:
    """Ids after the latest reply by plain rendering of the user's message between delimiters."""
    encode = served.local.source_tokenizer
    text = ("<|im_end|>\n" if replies else "") + "<|im_start|>user\n"
    ids = encode(text, add_special_tokens=False)["input_ids"]
    ids += encode(messages[-1]["content"], add_special_tokens=False)["input_ids"]
    thought = "<think>\n" if "<think>" in served.local.source_tokenizer.chat_template else ""
    after = f"<|im_end|>\n<|im_start|>assistant\n{thought}"
    return [*ids, *encode(after, add_special_tokens=False)["input_ids"]]


@pytest.mark.sample("values")
@pytest.mark.parametrize("policy", ["window", "lookback-int8", "full"])
@pytest.mark.parametrize("template", [CHATML, REWRITING], ids=["append-only", "rewriting"])
def test_turns_read_only_what_is_new_and_say_what_a_cache_fed_by_hand_says(
    chat_model: Callable[[str], LocalModel], template: str, policy: str
) -> None:
    budget = None if policy == "full" else 96
    with ExitStack() as stack:
        served = stack.enter_context(
            serving(chat_model(template), policies=(policy,), budget=budget)
        )
        hand = ByHand(served, policy, budget, served.local.cache_dtype)
        client = stack.enter_context(served.client())
        messages: list[dict[str, Any]] = []
        replies: list[list[int]] = []
        num_before = 0
        for turn in range(NUM_TURNS):
            messages.append({"role": "user", "content": f"Blue Kayak {turn}, or a page?"})
            new = new_ids(served, messages, replies)
            said = client.chat.completions.create(
                model="tiny", messages=messages, temperature=0, max_tokens=6
            )
            written, num_read = hand.reply(new, 6)
            usage = said.usage
            assert usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens == num_read
            assert usage.prompt_tokens == num_before + len(new)
            assert usage.completion_tokens == len(written)
            message = said.choices[0].message
            thought = getattr(message, "reasoning_content", None) or ""
            expected = served.engine.template.decode_reply(written)
            assert thought.strip("\n") + message.content.strip("\n") == expected.strip("\n")
            num_before = usage.prompt_tokens + len(written)
            replies.append(written)
            messages.append({"role": "assistant", "content": message.content})
        served.idle()
        assert hand.cache.ids is not None
        (session,) = served.engine.sessions
        assert session.cache is not None and session.cache.ids is not None
        assert session.cache.ids.tolist() == hand.cache.ids.tolist()
        assert kept(session.cache) == kept(hand.cache)


def talk(served: Served, name: str, num_turns: int) -> list[str]:
    """Hold a conversation and return its replies."""
    messages: list[dict[str, Any]] = []
    said = []
    with served.client() as client:
        for turn in range(num_turns):
            messages.append({"role": "user", "content": f"{name} asks {turn}: " + "page url " * 20})
            reply = client.chat.completions.create(
                model="tiny", messages=messages, temperature=0, max_tokens=8, prompt_cache_key=name
            )
            said.append(reply.choices[0].message.content)
            messages.append({"role": "assistant", "content": said[-1]})
    return said


def test_eight_sessions_in_memory_for_four_say_what_each_says_alone(
    chat_model: Callable[[str], LocalModel],
) -> None:
    names = [f"guest {i}" for i in range(8)]
    local = chat_model(CHATML)
    with serving(local, policies=("window",)) as served:
        alone = {name: talk(served, name, 3) for name in names}
        served.idle()
        assert served.engine.sessions.num_spills == 0
        nbytes = max(session.cache_nbytes for session in served.engine.sessions)
    with serving(local, policies=("window",), memory=f"{4 * nbytes}B", snapshots=0) as served:
        with ThreadPoolExecutor(8) as pool:
            together = dict(
                zip(names, pool.map(lambda name: talk(served, name, 3), names), strict=True)
            )
        served.idle()
        assert together == alone
        sessions = served.engine.sessions
        assert sessions.num_spills >= 4 and sessions.num_loads >= 4
        assert sessions.nbytes <= 4 * nbytes
        assert sessions.peak_nbytes <= 4 * nbytes * 1.25


def test_a_server_has_decoded_under_every_policy_before_it_listens(
    chat_model: Callable[[str], LocalModel],
) -> None:
    local = chat_model(CHATML)
    caches: list[Any] = []
    local.model.register_forward_pre_hook(
        lambda _, args, given: caches.append(cache_in(given)), with_kwargs=True
    )
    with serving(local, policies=("window", "int8")) as served:
        assert len(caches) == 4 and len(set(map(id, caches))) == 2
        assert not list(served.engine.sessions)
