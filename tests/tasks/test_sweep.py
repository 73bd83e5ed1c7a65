"""Sweeps: variations of policies by one parameter."""

import pytest

from agentkv.build import make_policy
from agentkv.settings import PolicySettings
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.sweep import swept, variation_of


def names(policies: list[PolicySettings]) -> list[str]:
    return [each.row_name for each in policies]


def test_each_policy_that_has_the_parameter_is_followed_by_its_variations() -> None:
    chosen = [PolicySettings(name=name) for name in ("window", "conf-kv", "conf-kv-int8")]
    found = swept(chosen, ["threshold=0.5, 0.9", "format=int4"])
    assert names(found) == [
        "window",
        "conf-kv",
        "conf-kv threshold=0.5",
        "conf-kv threshold=0.9",
        "conf-kv-int8",
        "conf-kv-int8 threshold=0.5",
        "conf-kv-int8 threshold=0.9",
        "conf-kv-int8 format=int4",
    ]
    for each in found:
        make_policy(each)
    assert variation_of(found[3].row_name) == ("conf-kv", "threshold", "0.9")
    assert variation_of("conf-kv") is None


def test_a_policys_own_value_makes_no_variation_and_a_value_may_be_a_list() -> None:
    chosen = [PolicySettings(name="conf-kv")]
    sweep = "weights=[0.4,0.3,0.3],[1,0,0]"
    assert names(swept(chosen, [sweep])) == ["conf-kv", "conf-kv weights=[1, 0, 0]"]


def test_a_variation_of_a_labelled_policy_keeps_the_label_in_its_name() -> None:
    chosen = [PolicySettings(name="conf-kv", label="ours", parameters={"slack": 2})]
    assert names(swept(chosen, ["slack=0,2"])) == ["ours", "ours slack=0"]


@pytest.mark.parametrize("text", ["threshold", "=1", "threshold=", "nothing=1"])
def test_an_unknown_sweep_names_what_is_possible(text: str) -> None:
    with pytest.raises(BenchError, match="threshold=0.5,0.9|There are conf-kv: threshold, weights"):
        swept([PolicySettings(name="conf-kv")], [text])
