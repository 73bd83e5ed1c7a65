"""While a long prompt is turned into ids, the server goes on with everything else."""

import threading
from collections.abc import Callable, Iterator

import pytest

from agentkv.models.local import LocalModel
from tests.agentkv.serve.conftest import CHATML, Served, serving
from tests.agentkv.serve.test_requests import GOOD, send, text_of

SLOW = (
    "{% for m in messages if m.content == 'slow' %}{% for i in range(900) %}"
    "{% for j in range(900) %}{% if j < 0 %}x{% endif %}{% endfor %}{% endfor %}{% endfor %}"
)
"""Takes a template a while and renders nothing."""
LONG = {**GOOD, "messages": [{"role": "user", "content": "one of many words, " * 50_000}]}
"""Encodes to more tokens than the model has positions, which is known once it is encoded."""


@pytest.fixture(scope="module")
def served(chat_model: Callable[[str], LocalModel]) -> Iterator[Served]:
    with serving(chat_model(SLOW + CHATML)) as served:
        yield served


def waiting(served: Served) -> bool:
    """Whether a request waits, by the metrics."""
    return "\nagentkv_requests_waiting 1.0\n" in text_of(served, "/metrics")


def test_replies_and_metrics_go_on_while_a_long_prompt_is_read(served: Served) -> None:
    served.idle()
    answered: list[str] = []
    refused: list[str] = []

    def ask_long() -> None:
        status, answer = send(served, LONG)
        answered.append("long")
        refused.append(f"{status} {answer['error']['message']}")

    chunks = served.client().chat.completions.create(
        model="tiny", messages=GOOD["messages"], max_tokens=4000, stream=True
    )
    with chunks:
        next(iter(chunks))
        thread = threading.Thread(target=ask_long)
        thread.start()
        while not waiting(served):
            assert not answered, "the metrics waited for the long prompt"
        status, _ = send(served, {**GOOD, "max_tokens": 3})
        answered.append("short")
        thread.join()
    assert status == 200 and answered == ["short", "long"]
    assert refused[0].startswith("400 the model has 32768 positions")
    served.idle()


def test_requests_of_a_session_keep_their_order_whatever_their_prompts_take(
    served: Served,
) -> None:
    served.idle()
    answered: list[str] = []

    def ask(content: str, session: str) -> None:
        messages = [{"role": "user", "content": content}]
        more = {"max_tokens": 2, "agentkv": {"session": session}}
        assert send(served, {**GOOD, "messages": messages, **more})[0] == 200
        answered.append(f"{content} in {session}")

    first = threading.Thread(target=ask, args=("slow", "one"))
    first.start()
    while not waiting(served):
        assert first.is_alive()
    second = threading.Thread(target=ask, args=("fast", "one"))
    second.start()
    ask("fast", "another")
    first.join()
    second.join()
    of_one = [each for each in answered if each.endswith(" in one")]
    assert of_one == ["slow in one", "fast in one"] and "fast in another" in answered


def test_counts_of_tokens_wait_in_the_same_queue_as_replies(
    chat_model: Callable[[str], LocalModel],
) -> None:
    """One request at a time fits into this queue, of whatever kind."""
    count, counted = "/v1/messages/count_tokens", []
    settings = {"parallel": 1, "queue": 0, "max_tokens": 30_000}
    with serving(chat_model(SLOW + CHATML), **settings) as served:
        with served.client().chat.completions.create(
            model="tiny",
            messages=GOOD["messages"],
            stream=True,
            extra_body={"max_tokens": 30_000, "ignore_eos": True},
        ) as chunks:
            next(iter(chunks))
            status, refused = send(served, GOOD, count)
            assert status == 429 and refused["error"]["type"] == "rate_limit_error"
            assert refused["type"] == "error" and "1 requests run or wait" in str(refused)
        served.idle()

        def ask() -> None:
            roles = ["user", "assistant"] * 20
            slow = {"messages": [{"role": role, "content": "slow"} for role in [*roles, "user"]]}
            counted.append(send(served, slow, count)[0])

        thread = threading.Thread(target=ask)
        thread.start()
        while not waiting(served):
            assert thread.is_alive(), "a count is not among the requests that wait"
        assert send(served, GOOD)[0] == 429
        thread.join()
        assert counted == [200]
        served.idle()
        assert send(served, GOOD)[0] == 200
        served.idle()
        assert send(served, GOOD, count)[0] == 200
