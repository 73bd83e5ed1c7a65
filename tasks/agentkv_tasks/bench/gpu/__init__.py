"""`make gpu`: everything that only a machine with a CUDA device can show, in nine minutes."""
