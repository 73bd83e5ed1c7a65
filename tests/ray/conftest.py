"""A Ray cluster on this machine; `make test-ray` has the environment."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.tasks.runs import REPOSITORY

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@contextlib.contextmanager
def local_cluster(num_nodes: int) -> Iterator[Any]:
    """Start a cluster whose nodes play with this Python and this source tree."""
    with pytest.MonkeyPatch.context() as patch:
        path = [str(REPOSITORY / room) for room in (".", "env", "kernels", "tasks")]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        patch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        started = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        for _ in range(num_nodes - 1):
            started.add_node(**NODE)
        yield started
        started.shutdown()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes."""
    with local_cluster(2) as started:
        yield started
