"""A process ends well whatever its threads compile, and processes that compile at once do not mix
up their code."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from agentkv_kernels.numba.compiled import FilePerSignature, telling_of_compilation

WATCHED = """
import atexit, os, signal, sys, threading, time
from numba.core import event

# whoever started the tests in the background may have had it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
compiling, compilers, begun = [], set(), threading.Event()

class Watch(event.Listener):
    def on_start(self, _):
        compiling.append(threading.current_thread().name)
        compilers.add(threading.current_thread().name)
        begun.set()

    def on_end(self, _):
        compiling.remove(threading.current_thread().name)

# registered first, so that it runs last
atexit.register(lambda: print("compiling:", compiling))
"""
IN_A_THREAD = """
event.register("numba:compile", Watch())
import numpy, kernel
threading.Thread(target=kernel.long, args=(numpy.zeros(9),), daemon=True).start()
begun.wait()
"""
ENDINGS = {
    "sys.exit(3)": {3},
    "raise ValueError": {1},
    # Python forgets that it was interrupted if another thread calls exec meanwhile, as Numba does
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)": {1, -signal.SIGINT},
}
STEPS = """
import torch, transformers, agentkv

atexit.register(lambda: print("helping:", [x.name for x in threading.enumerate()][1:]))
torch.set_num_threads(2)
sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
config = transformers.LlamaConfig(vocab_size=96, num_key_value_heads=2, **sizes)
model = transformers.LlamaForCausalLM(config).eval()
agentkv.attach(model)
cache = agentkv.Cache.for_model(model, policy="full")
ids = torch.zeros(1, 1, dtype=torch.int64)
"""


def run(program, folder=None, **variables):
    environ = os.environ | {"PYTHONPATH": str(folder or "")} | variables
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_once_no_thread_compiles(ending, tmp_path):
    lines = [f"    for i in range(9): x[i] = x[i] * {i} + x[(i + {i}) % 9]" for i in range(12)]
    head = "from agentkv_kernels.numba.compiled import compiled\n\n@compiled()\ndef long(x):\n"
    (tmp_path / "kernel.py").write_text(head + "\n".join(lines))
    ended = run(WATCHED + IN_A_THREAD + ending, tmp_path)
    assert ended.returncode in ENDINGS[ending], ended.stderr
    assert ended.stdout == "compiling: []\n"


def test_the_thread_that_wants_a_step_compiles_for_its_helpers_and_they_end_with_it():
    # to read compiled code from disk takes Numba's lock as well
    watch = 'event.register("numba:compiler_lock", Watch())\n'
    # enough for the helper to have begun
    steps = "for _ in range(40): cache.feed(model, ids)\nprint(compilers)\n"
    ended = run(WATCHED + STEPS + watch + steps)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[:2] == ["{'MainThread'}", "helping: []"]


class Slow:
    """An object that is written once the other thread has come to a certain place."""

    def __init__(self, text, comes, waits):
        self._text, self._comes, self._waits = text, comes, waits

    def __repr__(self):
        return repr(self._text)

    def __reduce__(self):
        self._comes.set()
        assert self._waits.wait(60)
        return str, (self._text,)


def test_code_for_two_signatures_that_is_written_at_once_is_not_mixed_up(tmp_path):
    first_is_late, second_has_begun, second_is_done = (threading.Event() for _ in range(3))
    file = FilePerSignature(str(tmp_path), "kernel", "stamp")

    def write_second():
        file.save(Slow("(float32)", second_has_begun, first_is_late), "code for float32")
        second_is_done.set()

    second = threading.Thread(target=write_second)
    second.start()
    assert second_has_begun.wait(60)
    file.save("(int16)", Slow("code for int16", first_is_late, second_is_done))
    second.join()
    assert file.load("(int16)") == "code for int16"
    assert file.load("(float32)") == "code for float32"
    assert file.load("(float64)") is None
    assert FilePerSignature(str(tmp_path), "kernel", "other sources").load("(int16)") is None


def test_code_that_was_cut_short_is_compiled_anew(tmp_path):
    file = FilePerSignature(str(tmp_path), "kernel", "stamp")
    file.save("(int16)", "code for int16")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert file.load("(int16)") is None


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, 6, 12])
def test_a_first_run_that_is_interrupted_ends_by_the_interrupt(seconds, tmp_path):
    """What a process compiles first takes more than a minute."""
    program = WATCHED + STEPS + "print('began', flush=True)\ncache.feed(model, ids)\n"
    program += "cache.feed(model, ids)\ntime.sleep(60)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
    )
    with process:
        assert process.stdout.readline() == "began\n"
        while process.poll() is None:  # an interrupt in one of LLVM's callbacks is lost
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
        stderr = process.stderr.read()
        assert process.returncode in (1, -signal.SIGINT) and "KeyboardInterrupt" in stderr, stderr


def test_compiling_is_announced_where_the_disk_does_not_hold_the_code(tmp_path):
    heard = []
    with telling_of_compilation(heard.append):
        file = FilePerSignature(str(tmp_path), "kernel", "stamp")
        assert file.load("(int16)") is None and heard == [False]
        file.save("(int16)", "code for int16")
        assert heard == [False, True]
        assert file.load("(int16)") == "code for int16" and heard == [False, True]
    assert file.load("(float32)") is None and heard == [False, True]
