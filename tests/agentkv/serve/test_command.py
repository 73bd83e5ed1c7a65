"""What `agentkv serve` prints for people, from its start to Ctrl-C, and what stays of it."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from agentkv.models.adapter import quiet_peft
from agentkv.models.load import load_model
from agentkv.models.local import LocalModel
from tests.agentkv.serve.conftest import free_port, serving
from tests.agentkv.serve.test_kill import (
    WORDS,
    ask,
    client_for,
    command_for,
    wait_until_it_answers,
)
from tests.agentkv.serve.test_kill import folder as folder


def test_the_server_says_what_it_serves_and_how_it_ended_and_keeps_its_sessions(
    folder: Path, tmp_path: Path
) -> None:
    port, store, name = free_port(), tmp_path / "store", folder.name
    messages: list[Any] = [{"role": "user", "content": WORDS}]
    with (
        subprocess.Popen(
            [*command_for(folder, store, port), "--explain"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        client_for(port) as client,
    ):
        assert process.stdout is not None and process.stderr is not None
        try:
            first, second = process.stdout.readline(), process.stdout.readline()
            wait_until_it_answers(client, process)
            ask(client, messages, model=name, prompt_cache_key="mine")
        finally:
            process.send_signal(signal.SIGINT)  # or the test would wait for it for ever
        errors = process.stderr.read()
    assert f"serving model {name} ({folder}) at http://127.0.0.1:{port}/v1, with window" in first
    assert second.strip() == f"Press Ctrl-C to stop; sessions stay in {store}."
    assert " slot 0: read from the beginning\n" in errors
    assert process.returncode == 130
    assert errors.splitlines()[-1] == f"agentkv: stopped; sessions stay in {store}"
    assert len(list(store.glob("sessions/*/cache-*"))) == 1


def test_a_server_on_a_free_port_says_which_one_and_answers_there_at_once(
    folder: Path, tmp_path: Path
) -> None:
    with subprocess.Popen(
        command_for(folder, tmp_path / "store", 0),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", process.stdout.readline())
            assert found is not None and int(found[1]) > 0
            with client_for(int(found[1])) as client:
                assert [model.id for model in client.models.list()] == [folder.name]
        finally:
            process.terminate()


def test_a_server_may_open_as_many_files_as_the_system_allows() -> None:
    code = (
        "import resource; from agentkv.serve.command import allow_files\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))\n"
        "allow_files(); print(resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_server_with_an_adapter_answers_as_its_model_and_reads_stored_sessions_again(
    folder: Path, tmp_path: Path
) -> None:
    adapter = random_adapter(folder, tmp_path / "adapter")
    store = tmp_path / "store"
    messages: list[Any] = [{"role": "user", "content": WORDS}]

    def reply(local: LocalModel) -> str:
        with serving(local) as served, served.client() as client:
            return said(client, messages)

    def served_reply(*options: object) -> tuple[str, str]:
        port = free_port()
        command = [*command_for(folder, store, port), "--name", "tiny", *map(str, options)]
        with (
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process,
            client_for(port) as client,
        ):
            assert process.stderr is not None
            try:
                wait_until_it_answers(client, process)
                answer = said(client, messages)
            finally:
                process.send_signal(signal.SIGINT)
            return answer, process.stderr.read().decode()

    base = load_model(folder, device="cpu")
    with_adapter = load_model(folder, device="cpu", adapter=adapter)
    answer, errors = served_reply()
    assert answer == reply(base) != reply(with_adapter)
    assert "another model" not in errors
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
    answer, errors = served_reply("--adapter", adapter)
    assert answer == reply(with_adapter)
    assert "session 'mine' is lost and read again" in errors
    assert "it was saved with another model" in errors


def said(client: openai.OpenAI, messages: list[Any]) -> str:
    answer = ask(client, messages, prompt_cache_key="mine", max_tokens=12)
    return str(answer.choices[0].message.content)


def random_adapter(model: Path, to: Path) -> Path:
    """Write an adapter whose weights are random and change every reply."""
    torch.manual_seed(3)
    settings = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    with quiet_peft():
        get_peft_model(AutoModelForCausalLM.from_pretrained(model), settings).save_pretrained(
            str(to)
        )
    return to
