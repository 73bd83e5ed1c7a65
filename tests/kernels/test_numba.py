"""The Numba kernels: steep softmaxes, NaN and inf, and that Numba stays optional."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import agentkv_kernels
from agentkv.cache.storage.choose import TORCH
from agentkv.cache.storage.evictions import Eviction
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv.cache.storage.numba_backend import NUMBA
from agentkv.cache.storage.table import Meter
from agentkv.policies.entries import DropOne
from agentkv_kernels.formats import FORMATS
from agentkv_kernels.layout import EMPTY, FORMAT_NUMBERS, Layout


class Received:
    """Keeps the mass of the only segment."""

    def num_queries(self, num_new):
        return num_new

    def observe(self, which, mass, num_new, last_weights):
        self.mass = mass[0].clone()


def attended(q, keys, values):
    """Output and mass of q (H, D) over entries (W, T, D), the last of which is appended with it."""
    heads, count, head_dim = keys.shape
    layout = Layout(1, heads, head_dim, torch.float32, None, EMPTY, 0, False)
    storage = LayerStorage(layout, batch=1, device=torch.device("cpu"), meter=Meter())
    NUMBA.append(storage, keys[None, :, :-1], values[None, :, :-1], first=[0])
    received = Received()
    output = NUMBA.append_attend(
        storage, q[None, :, None], keys[None, :, -1:], values[None, :, -1:], first=[count - 1],
        scale=1.0, sinks=None, ema=None, observer=received,
    )  # fmt: skip
    return output[0, :, 0], received.mass


@pytest.mark.parametrize("size", [1e-30, 1.0, 40.0, 1e4])
def test_a_softmax_is_exact_however_steep(size):
    torch.manual_seed(0)
    q, keys, values = torch.randn(2, 8), torch.randn(1, 300, 8) * size, torch.randn(1, 300, 8)
    output, mass = attended(q, keys, values)
    weights = torch.softmax(q.double() @ keys[0].double().mT, dim=-1)
    # logits of thousands are themselves rounded
    loose = {"atol": 2e-6 * max(1.0, size), "rtol": 1e-5}
    torch.testing.assert_close(output.double(), weights @ values[0].double(), **loose)
    torch.testing.assert_close(mass.double(), weights.mean(dim=0), **loose)
    assert float(mass.sum()) == pytest.approx(1, abs=1e-5)


def test_an_entry_that_outweighs_a_million_leaves_the_others_their_share():
    keys = torch.zeros(1, 5, 1)
    keys[0, :, 0] = torch.tensor([0.0, -20.0, -80.0, -120.0, -1e30])
    _, mass = attended(torch.ones(1, 1), keys, keys * 0)
    expected = [math.exp(x) for x in (0.0, -20.0, -80.0, -120.0, -1e30)]
    total = sum(expected)
    # numbers below the smallest normal float32 are 0
    expected = [x / total if x > 2**-126 else 0.0 for x in expected]
    assert mass.tolist() == pytest.approx(expected, rel=1e-5, abs=0)


def test_nan_and_inf_are_not_hidden():
    keys, values = torch.zeros(2, 1, 9, 4)
    keys[0, 3] = math.nan
    assert attended(torch.ones(1, 4), keys, values)[0].isnan().all()
    values[0, 3, 1], keys[0, 3] = math.inf, 0
    assert attended(torch.ones(1, 4), keys, values)[0][0].tolist() == [0.0, math.inf, 0.0, 0.0]


def in_a_process(code, **environment):
    """Run a program that treats warnings as errors, and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


STEP = (
    "import torch; from agentkv.cache.geometry import Attention, LayerShape;"
    "from agentkv.cache.layer import CacheLayer; from agentkv.cache.storage.table import Meter;"
    "layer = CacheLayer(LayerShape(1, 4, None), policy=None, meter=Meter());"
    "token = torch.ones(1, 1, 1, 4);"
    "step = lambda: layer.attend(token, token, token, None, Attention(1.0, None, None));"
)


def test_numba_is_imported_by_the_first_step_and_not_before():
    code = (
        "import sys; import agentkv.cache.cache;"
        "print('numba' in sys.modules);"
        f"{STEP} step();"
        "print('numba' in sys.modules)"
    )
    assert in_a_process(code).split() == ["False", "True"]


def test_without_numba_plain_torch_serves():
    code = (
        "import sys; sys.modules['numba'] = None;"
        f"{STEP} step(); print(layer.backend.name);"
        "from agentkv_kernels.device import choice_for; print(choice_for(torch.device('cpu')))"
    )
    expected = "torch: Numba is not installed: pip install 'agentkv-web[cpu]'"
    assert in_a_process(code).splitlines() == ["torch", expected]


@pytest.mark.slow
def test_a_process_that_was_forked_after_a_step_takes_steps_too():
    code = (
        f"import os; {STEP} step(); child = os.fork();"
        "found = step().sum();"
        "os._exit(int(found != 4)) if not child else print(os.waitpid(child, 0)[1])"
    )
    assert in_a_process(code) == "0"


@pytest.mark.parametrize("head_dim", [8, 34, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*filter(None, FORMAT_NUMBERS)])
@pytest.mark.sample("pairs")
def test_every_format_is_read_as_torch_reads_it(name, dtype, head_dim):
    torch.manual_seed(0)
    layout = Layout(1, 2, head_dim, dtype, FORMATS[name], EMPTY, 0, False)
    storage = LayerStorage(layout, batch=2, device=torch.device("cpu"), meter=Meter())
    keys, values = (3 * torch.randn(2, 2, 300, head_dim, dtype=dtype) for _ in range(2))
    keys[:, :, 7] = 0
    NUMBA.append(storage, keys, values, first=[0, 0])
    NUMBA.quantize_oldest(storage, [40, 40])
    NUMBA.drop([Eviction([storage], i, DropOne(torch.tensor([70]))) for i in range(2)])
    q, key, value = torch.randn(2, 6, 1, head_dim), *torch.randn(2, 2, 2, 1, head_dim)
    options = {"first": [300, 300], "scale": 0.2, "sinks": None, "ema": None}
    found = []
    for backend in (NUMBA, TORCH):
        received, own = Received(), storage.take([0, 1])
        output = backend.append_attend(own, q, key, value, **options, observer=received)
        found.append((output, received.mass))
        own.check()
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-3)


def test_compiled_code_is_kept_until_any_kernel_changes(tmp_path):
    package = tmp_path / "agentkv_kernels"
    shutil.copytree(
        Path(agentkv_kernels.__file__).parent, package, ignore=lambda *_: ["__pycache__"]
    )
    code = (
        "from agentkv_kernels.numba.arithmetic import power_of_two as power; import numpy as np;"
        "power(np.float32(1.0)); print(sum(power.stats.cache_hits.values()))"
    )

    def hits():
        return in_a_process(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}")

    assert hits() == "0"
    assert hits() == "1"
    with (package / "layout.py").open("a") as file:
        file.write("# another state\n")
    assert hits() == "0"
