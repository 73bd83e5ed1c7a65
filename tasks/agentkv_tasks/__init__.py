"""The measurements: task schema, suites, evaluators, runner, statistics and report."""
