"""A server that is killed in the middle of its work, and the next one on the same folder."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from agentkv.models.load import load_model
from agentkv.models.local import LocalModel
from tests.agentkv.serve.conftest import CHATML, free_port, serving

WORDS = "Add to cart, search the page, click a link or a button. " * 6


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, chat_model: Callable[[str], LocalModel]
) -> Path:
    """A folder with a tiny chat model."""
    folder = tmp_path_factory.mktemp("model")
    local = chat_model(CHATML)
    local.model.save_pretrained(folder)
    local.source_tokenizer.save_pretrained(folder)
    return folder


def command_for(folder: Path, store: Path, port: int) -> list[str]:
    command = [sys.executable, "-m", "agentkv", "serve", "--model", str(folder)]
    command += ["--port", str(port), "--store", str(store), "--policies", "window"]
    return [*command, "--budget", "96", "--chunk", "32", "--device", "cpu", "--memory", "60KiB"]


def client_for(port: int, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key=key,
        max_retries=0,
        timeout=300,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


@contextmanager
def running(folder: Path, store: Path) -> Iterator[tuple[openai.OpenAI, "subprocess.Popen[bytes]"]]:
    """Run `agentkv serve` in a process of its own."""
    port = free_port()
    process = subprocess.Popen(
        [*command_for(folder, store, port), "--name", "tiny"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    client = client_for(port)
    try:
        wait_until_it_answers(client, process)
        yield client, process
    finally:
        client.close()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()


def wait_until_it_answers(client: openai.OpenAI, process: "subprocess.Popen[Any]") -> None:
    """Wait until a server that was started accepts connections, which is after it says where."""
    for _ in range(3000):
        assert process.poll() is None, process.stderr and process.stderr.read()
        try:
            client.models.list()
            return
        except openai.APIConnectionError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


@contextmanager
def next_server(folder: Path, store: Path) -> Iterator[openai.OpenAI]:
    """Run a server with the same model and options in this process."""
    local = load_model(str(folder), device="cpu")
    options = {"name": "tiny", "memory": "60KiB", "store": store}
    with serving(local, **options) as served, served.client() as client:
        yield client


def ask(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    options = {"model": "tiny", "temperature": 0, "max_tokens": 5, **options}
    return client.chat.completions.create(messages=messages, **options)


def test_saved_sessions_outlive_a_killed_server_and_none_is_mixed_up(
    folder: Path, tmp_path: Path
) -> None:
    names = [f"guest {i}" for i in range(4)]
    talks: dict[str, list[Any]] = {}
    expected: dict[str, str] = {}
    with next_server(folder, tmp_path / "alone") as client:
        for name in names:
            talks[name] = [{"role": "user", "content": f"{name}: {WORDS}"}]
            answer = ask(client, talks[name], prompt_cache_key=name)
            talks[name].append({"role": "assistant", "content": answer.choices[0].message.content})
            talks[name].append({"role": "user", "content": f"{name} goes on"})
            expected[name] = (
                ask(client, talks[name], prompt_cache_key=name).choices[0].message.content
            )
    store = tmp_path / "store"
    with running(folder, store) as (client, process):
        for slot, name in enumerate(names):
            ask(client, talks[name][:1], prompt_cache_key=name)
            client.post(
                f"../slots/{slot}?action=save", body={"filename": f"s{slot}"}, cast_to=object
            )
        stream = client.chat.completions.create(
            model="tiny",
            messages=talks[names[0]],
            prompt_cache_key=names[0],
            max_tokens=4000,
            temperature=1,
            stream=True,
        )
        next(iter(stream))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        stream.close()
    with next_server(folder, store) as client:
        slots = client.get("../slots", cast_to=list[Any])
        for number, name in enumerate(names):
            free = 100 + number
            restored: Any = client.post(
                f"../slots/{free}?action=restore", body={"filename": f"s{number}"}, cast_to=dict
            )
            answer = ask(client, talks[name], extra_body={"id_slot": free})
            assert answer.usage.prompt_tokens_details.cached_tokens >= restored["n_restored"] - 1
            assert answer.choices[0].message.content == expected[name]
        assert slots and all(slot["session"] in names for slot in slots)
        for slot in slots:  # those that had gone to disk before the kill
            answer = ask(client, talks[slot["session"]], prompt_cache_key=slot["session"])
            assert answer.choices[0].message.content == expected[slot["session"]]
