"""The Triton kernels compile for the devices they are meant for, and into what they should."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not made for this platform")

pytestmark = pytest.mark.slow

from agentkv_kernels.device import TRITONS, _lack_of_triton, unsupported_by_triton  # noqa: E402
from agentkv_kernels.triton.append import append_kernel  # noqa: E402
from agentkv_kernels.triton.attention import attend_kernel  # noqa: E402
from agentkv_kernels.triton.combine import combine_kernel  # noqa: E402
from agentkv_kernels.triton.drop import COLUMNS, UNITS, drop_kernel  # noqa: E402
from agentkv_kernels.triton.tiling import splits, tiling  # noqa: E402
from tests.kernels import segment_checks  # noqa: E402
from tests.kernels.builds import TYPES, built, only_built  # noqa: E402
from tests.kernels.drop_checks import DropRuns  # noqa: E402
from tests.sampling import sampled  # noqa: E402

MOST_SHARED = 100 * 1024
"""Shared memory that allows two programs per multiprocessor of the oldest devices."""


@pytest.fixture(autouse=True)
def nothing_is_built_yet(tmp_path, monkeypatch):
    import triton

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))


def test_a_triton_that_was_not_tried_is_not_used_and_named(tmp_path, monkeypatch):
    for found, lack in ((TRITONS[0], None), ("9.9.0", "Triton 9.9.0 is installed")):
        about = tmp_path / found / f"triton-{found}.dist-info" / "METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {found}\n")
        monkeypatch.syspath_prepend(about.parents[1])
        said = _lack_of_triton()
        assert said is None if lack is None else lack in said and TRITONS[0] in said


def named(kernel, **types):
    """The type of every argument, given the names of those that have it; without one: float32."""
    by_name = {name: type for type, names in types.items() for name in names.split()}
    return {p.name: by_name.get(p.name, "*fp32") for p in kernel.params if not p.is_constexpr}


SHAPED = {
    name: check
    for name, check in (segment_checks.CHECKS | segment_checks.ON_A_DEVICE).items()
    if not isinstance(check, DropRuns)  # its kernel is one for all tables
}


@pytest.mark.parametrize("name", sampled(SHAPED, every=3))
@pytest.mark.parametrize("capability", sampled([90, 80], every=2))
def test_the_kernels_build_for_all_that_the_checks_give_them(name, capability, monkeypatch):
    # nothing runs, so there is nothing to compare
    monkeypatch.setattr(segment_checks, "close", lambda found, expected, **tolerance: None)
    with only_built(capability) as launched:
        SHAPED[name]("cpu")
    assert launched


# query heads per KV head, head size, dtype
ATTENTION = [
    (1, 64, torch.float16),
    (3, 128, torch.bfloat16),
    (5, 128, torch.float16),
    (8, 64, torch.bfloat16),
    (16, 256, torch.bfloat16),
    (8, 128, torch.float32),
]


@pytest.mark.parametrize("group, head_dim, dtype", sampled(ATTENTION, every=2))
@pytest.mark.parametrize("capability", sampled([90, 80], every=2))
def test_attention_spills_nothing_and_loads_wide(tmp_path, group, head_dim, dtype, capability):
    assert unsupported_by_triton(dtype, group, head_dim) is None
    shape, name = tiling(group, head_dim, dtype), "*" + TYPES[str(dtype).removeprefix("torch.")]
    types = named(
        attend_kernel,
        **{"*i32": "extents dense_extents block_ids code_extents block_extents"},
        **{"*i8": "keys values key_exponents value_exponents", "*fp16": "shares"},
        i32="num_segments num_splits num_tiles",
        fp32="factor",
    )
    types |= dict.fromkeys(("q", "dense_keys", "dense_values"), name)
    sizes = {"W": 2, "G": group, "M": shape.heads, "D": head_dim, "E": shape.columns}
    constants = sizes | {"T": shape.entries, "DOT": shape.uses_dot, "CODED": True}
    constants |= {"MASS": True}
    done = built(
        attend_kernel,
        types,
        constants,
        capability=capability,
        folder=tmp_path,
        num_warps=shape.warps,
    )
    assert done.spilled_bytes == 0
    assert done.shared_bytes <= MOST_SHARED
    assert done.wide_loads >= 4  # keys and values, of codes and of other rows
    assert (done.products > 0) == (group >= 4 and dtype != torch.float32)


@pytest.mark.parametrize("capability", [80, 90])
def test_the_shares_are_put_together_without_spilling(tmp_path, capability):
    types = named(
        combine_kernel,
        **{
            "*fp16": "shares",
            "*i32": "extents code_extents",
            "*bf16": "output",
            "fp32": "keep gain",
        },
        i32="num_segments num_splits num_tiles segments_per_sequence",
    )
    constants = {"W": 2, "G": 8, "M": 8, "D": 128, "E": 128, "T": 64, "S": 64, "R": 128, "K": 1}
    flags = dict.fromkeys(("SINKS", "CODED", "WRITES_MASS", "UPDATES", "STARTS_AT_MASS"), True)
    done = built(combine_kernel, types, constants | flags, capability=capability, folder=tmp_path)
    assert done.spilled_bytes == 0
    assert done.shared_bytes <= MOST_SHARED


@pytest.mark.parametrize("head_dim, dtype", [(128, "*bf16"), (256, "*fp32")])
@pytest.mark.parametrize("capability", [80, 90])
def test_an_entry_is_appended_without_spilling(tmp_path, head_dim, dtype, capability):
    tables = "extents dense_extents next_extents next_dense_extents"
    types = named(
        append_kernel,
        **{dtype: "new_keys new_values keys values"},
        **{"*i32": f"new_positions positions {tables}"},
        i32="plus num_segments",
    )
    constants = {"W": 2, "D": head_dim, "E": head_dim, "K": 1, "KP": 1, "TRACKED": True}
    where = {"capability": capability, "folder": tmp_path}
    done = built(append_kernel, types, constants, **where)
    assert done.spilled_bytes == 0
    assert done.shared_bytes <= MOST_SHARED


@pytest.mark.parametrize("capability", [80, 90])
def test_entries_are_dropped_without_spilling(tmp_path, capability):
    types = {"jobs": "*i64", "picks": "*i64"}
    where = {"capability": capability, "folder": tmp_path, "num_warps": 8}
    done = built(drop_kernel, types, {"C": COLUMNS, "T": UNITS}, **where)
    assert done.spilled_bytes == 0


@pytest.mark.parametrize(
    "num_programs, num_rows, expected",
    [
        (8, 4096, 33),
        (12, 4096, 22),
        (64, 4096, 5),
        (96, 4096, 3),
        (264, 4096, 1),
        (4000, 4096, 1),
        (8, 500, 8),
        (8, 1, 1),
        (8, 0, 1),
    ],
)
def test_shares_are_two_programs_a_unit_and_never_less_than_a_block(
    num_programs, num_rows, expected
):
    assert splits(num_programs, num_rows, num_units=132) == expected
