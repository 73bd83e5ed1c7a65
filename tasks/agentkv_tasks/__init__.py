"""Evaluation of agents and caches: tasks, suites, scoring, runs, reports and benchmarks."""
