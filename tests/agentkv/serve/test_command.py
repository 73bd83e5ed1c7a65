"""What `agentkv serve` prints for people, from its start to Ctrl-C."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.agentkv.serve.conftest import free_port
from tests.agentkv.serve.test_kill import folder as folder


def test_the_server_says_which_model_it_serves_and_how_it_ended(
    folder: Path, tmp_path: Path
) -> None:
    port, store = free_port(), tmp_path / "store"
    command = [sys.executable, "-m", "agentkv", "serve", "--model", str(folder), "--device", "cpu"]
    command += ["--port", str(port), "--store", str(store), "--policies", "window"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    name = folder.name
    assert f"serving model {name} ({folder}) at http://127.0.0.1:{port}/v1, with window" in first
    assert second.strip() == f"Press Ctrl-C to stop; sessions stay in {store}."
    assert errors.splitlines()[-1] == f"agentkv: stopped; sessions stay in {store}"
    assert process.returncode == 130
