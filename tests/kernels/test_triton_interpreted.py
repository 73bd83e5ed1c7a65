"""The Triton kernels against the reference: in Triton's interpreter, and on a device if there is
one.

The interpreter must be chosen before Triton is imported, so that it runs in a process of its own.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not made for this platform")

pytestmark = pytest.mark.slow

from tests.kernels import cache_checks  # noqa: E402
from tests.kernels.segment_checks import CHECKS, ON_A_DEVICE  # noqa: E402

ROOT = Path(__file__).parents[2]

needs_caches = pytest.mark.skipif(
    find_spec("pydantic") is None, reason="caches need pydantic, which is not installed"
)


def interpreted(module):
    """Run the checks of a module and return the traceback of each failure, or None."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
    }
    command = [sys.executable, "-W", "error", "-m", f"tests.kernels.{module}"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {line["check"]: line["failed"] for line in lines}


@pytest.fixture(scope="module")
def of_segments():
    return interpreted("segment_checks")


@pytest.fixture(scope="module")
def of_caches():
    return interpreted("cache_checks")


@pytest.mark.parametrize("name", CHECKS)
def test_the_kernels_do_what_the_reference_does(of_segments, name):
    assert of_segments[name] is None, of_segments[name]


@pytest.mark.parametrize("name", cache_checks.CHECKS)
def test_a_cache_steps_through_the_kernels_as_in_plain_torch(of_caches, name):
    assert of_caches[name] is None, of_caches[name]


@pytest.mark.parametrize("name", cache_checks.CHECKS)
def test_a_cache_keeps_host_and_device_apart(of_caches, name):
    assert of_caches[f"{name}, apart"] is None, of_caches[f"{name}, apart"]


@pytest.mark.exhaustive
def test_the_backend_does_what_plain_torch_does():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    tests = "tests/agentkv/cache/storage/test_backends.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "triton",
        tests,
    ]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and "passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHECKS | ON_A_DEVICE)
def test_the_kernels_do_on_a_device_what_the_reference_does(name):
    (CHECKS | ON_A_DEVICE)[name]("cuda")


@needs_caches
@pytest.mark.gpu
@pytest.mark.parametrize("name", cache_checks.CHECKS)
def test_a_cache_on_a_device_steps_through_the_kernels_as_in_plain_torch(name):
    cache_checks.check(name, "cuda")


@needs_caches
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["full", "window", "h2o"])
def test_a_step_of_a_cache_does_not_wait_for_the_device(name):
    cache_checks.check_unwaited(name, "cuda")


@needs_caches
@pytest.mark.gpu
@pytest.mark.parametrize("name", cache_checks.CHECKS)
def test_a_cache_gives_the_memory_of_a_device_back(name):
    cache_checks.check_given_back(name, "cuda")
