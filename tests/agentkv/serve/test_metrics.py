"""What the server says of itself."""

import logging
import re
from collections.abc import Callable

import prometheus_client.parser
import pytest

from agentkv.models.local import LocalModel
from tests.agentkv.serve.conftest import CHATML, serving
from tests.agentkv.serve.test_requests import GOOD, send, text_of


def test_metrics_count_what_was_read_and_what_was_not(
    chat_model: Callable[[str], LocalModel],
) -> None:
    with serving(chat_model(CHATML)) as served:
        status, answer = send(served, GOOD)
        reply = answer["choices"][0]["message"]
        more = {**GOOD, "messages": [*GOOD["messages"], reply, {"role": "user", "content": "so?"}]}
        _, second = send(served, more)
        send(served, {**GOOD, "n": 5})
        served.idle()
        families = prometheus_client.parser.text_string_to_metric_families(
            text_of(served, "/metrics")
        )
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }
        usages = [answer["usage"], second["usage"]]
        cached = sum(each["prompt_tokens_details"]["cached_tokens"] for each in usages)
        assert samples[("agentkv_prompt_tokens_total",)] == sum(
            each["prompt_tokens"] for each in usages
        )
        assert samples[("agentkv_cached_tokens_total",)] == cached > 0
        assert samples[("agentkv_completion_tokens_total",)] == sum(
            each["completion_tokens"] for each in usages
        )
        assert samples[("agentkv_requests_total", "/v1/chat/completions", "200")] == 2
        assert samples[("agentkv_requests_total", "/v1/chat/completions", "400")] == 1
        assert samples[("agentkv_first_token_seconds_count",)] == 2
        seconds = samples[("agentkv_completion_seconds_total",)]
        rate = samples[("agentkv_completion_tokens_per_second",)]
        assert seconds > 0 and samples[("agentkv_prompt_seconds_total",)] > 0
        assert rate == samples[("agentkv_completion_tokens_total",)] / seconds
        assert samples[("agentkv_sessions",)] == 1
        (session,) = served.engine.sessions
        assert samples[("agentkv_session_bytes",)] == session.nbytes > 0
        assert not re.search(r"hello|so\?", text_of(served, "/metrics"))


def test_the_model_is_named(chat_model: Callable[[str], LocalModel]) -> None:
    with serving(chat_model(CHATML)) as served:
        _, listed = send(served, b"", "/v1/models", "GET")
        assert [each["id"] for each in listed["data"]] == ["tiny"]
        _, one = send(served, b"", "/v1/models/tiny", "GET")
        assert one == listed["data"][0] and one["max_model_len"] == 32768


def test_a_reply_is_logged_in_numbers_without_its_text(
    chat_model: Callable[[str], LocalModel], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentkv.requests")
    with serving(chat_model(CHATML)) as served:
        _, answer = send(served, GOOD)
        served.idle()
    usage = answer["usage"]
    (line,) = [each.getMessage() for each in caplog.records if each.name == "agentkv.requests"]
    read = f"read {usage['prompt_tokens']} of {usage['prompt_tokens']} tokens in "
    assert line.startswith(f"slot 0: {read}")
    assert f", wrote {usage['completion_tokens']} in " in line and "tokens/s), " in line
    assert "hello" not in line


def test_any_model_is_answered_for_where_the_server_says_so(
    chat_model: Callable[[str], LocalModel],
) -> None:
    asked = {**GOOD, "model": "gpt-4o"}
    with serving(chat_model(CHATML), any_model=True) as served:
        status, answer = send(served, asked)
        assert status == 200 and answer["model"] == "tiny"
    with serving(chat_model(CHATML)) as served:
        status, answer = send(served, asked)
        assert status == 404 and "answers to other names with --any-model" in str(answer)
