"""Servers of tiny random chat models, in a thread, with the real client of OpenAI."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from agentkv.models.load import local_model
from agentkv.models.local import LocalModel
from agentkv.serve.command import prepare, serving_in_thread
from agentkv.serve.engine import Engine
from agentkv.serve.settings import ServeSettings
from tests.agentkv.agent.conftest import chat_tokenizer as chat_tokenizer
from tests.agentkv.agent.conftest import random_llama
from tests.agentkv.agent.test_chat_templates import FAMILIES, tokenizer_of, train_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that never rewrites a turn."""
TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>{{ m.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
REWRITING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}(earlier reply) {{ m.content | trim }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""A template that opens a thought before a reply and renders earlier replies in another way."""


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    engine: Engine
    local: LocalModel

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=key,
            max_retries=0,
            timeout=300,  # compiling a kernel may take minutes beside other work
            http_client=openai.DefaultHttpxClient(trust_env=False),
            **options,
        )

    def idle(self) -> None:
        """Wait until no request is being answered."""
        # Waiting ones first: one that starts between the two readings is counted twice, not missed.
        while self.engine.num_waiting + self.engine.num_running:
            time.sleep(0.005)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def chat_model(
    chat_tokenizer: Callable[..., PreTrainedTokenizerFast],
) -> Callable[[str], LocalModel]:
    """Return a function that makes a random model with a chat template."""

    def make(template: str) -> LocalModel:
        tokenizer = chat_tokenizer(template)
        return local_model(random_llama(len(tokenizer)), tokenizer, name="tiny")

    return make


@pytest.fixture(scope="session")
def family_model() -> Callable[[str], LocalModel]:
    """Return a function that makes a random model with the template of a family of models."""
    trained = train_tokenizer(["<unk>", "<bos>", "<eos>"])

    def make(family: str) -> LocalModel:
        if family not in FAMILIES:
            pytest.skip("the wheel of xinference is missing")
        tokenizer = tokenizer_of(FAMILIES[family], trained.to_str())
        return local_model(random_llama(len(tokenizer)), tokenizer, name="tiny")

    return make


@contextlib.contextmanager
def serving(
    local: LocalModel,
    *,
    policies: tuple[str, ...] = ("window",),
    budget: int | str | None = 96,
    chunk: int = 32,
    keys: tuple[str, ...] = (),
    **settings: Any,
) -> Iterator[Served]:
    """Serve a model on a free port."""
    asked = ServeSettings(
        model="tiny", policies=policies, budget=budget, chunk=chunk, port=0, **settings
    )
    with (
        prepare(local, asked, keys) as api,
        serving_in_thread(api, asked) as port,
    ):
        yield Served(f"http://127.0.0.1:{port}", api.engine, local)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
