"""`make gpu`: tests and benchmarks that need a CUDA device, within twelve minutes."""
