"""Settings of the whole suite."""

import os

# Models here are tiny: a second thread costs more than it brings, and on a shared machine far more
# (a cache test took 2.5 s with two threads beside other work, 0.1 s with one).
os.environ.setdefault("OMP_NUM_THREADS", "1")
