"""Findings of `agentkv doctor`."""

from pathlib import Path

import pytest

from agentkv_tasks.run.preflight import _check_shadowing


def test_doctor_reports_another_project_named_agentkv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(_check_shadowing()) == []
    metadata = tmp_path / "agentkv-0.9.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: agentkv\nVersion: 0.9.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = _check_shadowing()
    assert finding.verdict == "degraded"
    assert "agentkv 0.9.1" in finding.detail and "pip uninstall agentkv" in finding.detail
