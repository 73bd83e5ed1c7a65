"""The Triton kernels against the reference: in Triton's interpreter, and on a device if there is
one.

The interpreter must be chosen before Triton is imported, so that it runs in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not made for this platform")

from tests.kernels.lane_checks import CHECKS, ON_A_DEVICE  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def interpreted():
    """How each check went: the traceback of a failure, or None."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
    }
    command = [sys.executable, "-W", "error", "-m", "tests.kernels.lane_checks"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {line["check"]: line["failed"] for line in lines}


@pytest.mark.parametrize("name", CHECKS)
def test_the_kernels_do_what_the_reference_does(interpreted, name):
    assert interpreted[name] is None, interpreted[name]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", CHECKS | ON_A_DEVICE)
def test_the_kernels_do_on_a_device_what_the_reference_does(name):
    (CHECKS | ON_A_DEVICE)[name]("cuda")
