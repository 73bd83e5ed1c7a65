"""The Triton kernels compile for the devices they are meant for, and into what they should."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not made for this platform")

from agentkv_kernels.triton.attend import attend_kernel  # noqa: E402
from agentkv_kernels.triton.close import COLUMNS, UNITS, close_kernel  # noqa: E402
from agentkv_kernels.triton.compact import gather_kernel, merge_kernel  # noqa: E402

from agentkv_kernels.device import TRITONS, _lack_of_triton, lack_of_attention  # noqa: E402
from agentkv_kernels.triton.append import append_kernel, warps_for  # noqa: E402
from agentkv_kernels.triton.combine import combine_kernel  # noqa: E402
from agentkv_kernels.triton.tiling import splits, tiling  # noqa: E402
from tests.kernels.builds import TYPES, built  # noqa: E402

MOST_SHARED = 100 * 1024
"""What lets two programs stand on a unit of the oldest devices."""


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


# query heads per KV head, head size, dtype, whether rows may be missing
ATTENTION = [
    (1, 64, torch.float16, False),
    (3, 128, torch.bfloat16, True),
    (5, 128, torch.float16, True),
    (8, 64, torch.bfloat16, False),
    (16, 256, torch.bfloat16, True),
    (8, 128, torch.float32, True),
]


@pytest.mark.parametrize("group, head_dim, dtype, is_padded", ATTENTION)
@pytest.mark.parametrize("capability", [80, 90])
def test_attention_spills_nothing_and_loads_wide(
    tmp_path, group, head_dim, dtype, is_padded, capability
):
    assert lack_of_attention(dtype, group, head_dim) is None
    shape, name = tiling(group, head_dim, dtype), "*" + TYPES[str(dtype).removeprefix("torch.")]
    types = named(
        attend_kernel,
        **{"*i32": "positions boxes dense_boxes block_ids code_boxes block_boxes"},
        **{"*i8": "keys values key_exponents value_exponents", "*fp16": "shares"},
        i32="num_segments num_splits num_tiles",
        fp32="factor",
    )
    types |= dict.fromkeys(("q", "dense_keys", "dense_values"), name)
    sizes = {"W": 2, "G": group, "M": shape.heads, "D": head_dim, "E": shape.columns}
    constants = sizes | {"T": shape.rows, "DOT": shape.uses_dot, "CODED": True}
    constants |= {"PADDED": is_padded, "MASS": True}
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
        **{"*fp16": "shares", "*i32": "boxes code_boxes", "*bf16": "output", "fp32": "keep gain"},
        i32="num_segments num_splits num_tiles lanes_per_sequence",
    )
    constants = {"W": 2, "G": 8, "M": 8, "D": 128, "E": 128, "T": 64, "S": 64, "R": 128, "K": 1}
    flags = dict.fromkeys(("SINKS", "CODED", "WRITES_MASS", "MOVES", "STARTS_AT_MASS"), True)
    done = built(combine_kernel, types, constants | flags, capability=capability, folder=tmp_path)
    assert done.spilled_bytes == 0
    assert done.shared_bytes <= MOST_SHARED


@pytest.mark.parametrize("head_dim, dtype", [(128, "*bf16"), (256, "*fp32")])
@pytest.mark.parametrize("capability", [80, 90])
def test_a_block_leaves_without_spilling(tmp_path, head_dim, dtype, capability):
    tables = "boxes dense_boxes code_boxes block_boxes"
    after = " ".join("next_" + name for name in tables.split())
    types = named(
        append_kernel,
        **{dtype: "new_keys new_values keys values"},
        **{"*i32": f"new_positions positions block_ids {tables} {after}"},
        **{"*i8": "key_codes value_codes key_exponents value_exponents"},
        i32="plus recent num_segments",
    )
    constants = {"W": 2, "D": head_dim, "E": head_dim, "K": 1, "KP": 1, "B": 64}
    constants |= {"NUMBERS": True, "QUANTISES": True}
    warps = warps_for(head_dim)
    where = {"capability": capability, "folder": tmp_path, "num_warps": warps}
    done = built(append_kernel, types, constants, **where)
    assert done.spilled_bytes == 0
    assert done.shared_bytes <= MOST_SHARED
    assert done.wide_loads >= 2  # the rows that leave, keys and values


@pytest.mark.parametrize("capability", [80, 90])
def test_rows_go_without_spilling(tmp_path, capability):
    types = {"jobs": "*i64", "picks": "*i64"}
    where = {"capability": capability, "folder": tmp_path, "num_warps": 8}
    done = built(close_kernel, types, {"C": COLUMNS, "T": UNITS}, **where)
    assert done.spilled_bytes == 0


@pytest.mark.parametrize("capability", [80, 90])
def test_rows_are_gathered_wide(tmp_path, capability):
    types = named(
        gather_kernel,
        **{"*i32": "picks old_boxes new_boxes old_codes new_codes c new_c"},
        **{"*i8": "a b new_a new_b"},
        i32="num_picks num_segments",
    )
    constants = {"HA": 2, "CA": 128, "PA": 128, "HB": 2, "CB": 128, "PB": 128}
    constants |= {"HC": 1, "CC": 1, "PC": 1, "T": 64, "BEHIND": False}
    done = built(gather_kernel, types, constants, capability=capability, folder=tmp_path)
    assert done.spilled_bytes == 0
    assert done.wide_loads >= 2


@pytest.mark.parametrize("capability", [80, 90])
def test_blocks_are_merged_without_spilling(tmp_path, capability):
    exponents = "key_exponents value_exponents new_key_exponents new_value_exponents"
    types = named(
        merge_kernel,
        **{"*i8": f"keys values {exponents}"},
        **{"*i32": "block_ids boxes blocks new_ids new_blocks merges"},
        i32="num_segments",
    )
    constants = {"W": 2, "D": 128, "E": 128, "B": 64}
    done = built(merge_kernel, types, constants, capability=capability, folder=tmp_path)
    assert done.spilled_bytes == 0
    assert done.shared_bytes <= MOST_SHARED
    assert done.wide_loads >= 2


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
