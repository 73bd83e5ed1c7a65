"""Kernels compiled for devices that are not here, and what the assembler says of them."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class Built:
    shared_bytes: int
    spilled_bytes: int
    registers: int
    wide_loads: int
    """Loads of 128 bits, into registers or into shared memory."""
    products: int
    """On matrix units."""


def built(kernel, types, constants, *, capability, folder, num_warps=4):
    """A kernel built for a device of this compute capability (80, 90).

    Args:
        types: of each argument that is no constant, as Triton writes them; pointers, as torch
            makes them, are multiples of 16 bytes.
        folder: where to put what the assembler reads.
    """
    names = kernel.arg_names
    assert set(names) == {*types, *constants}, set(names) ^ {*types, *constants}
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if types.get(name, "").startswith("*")
        },
    )
    target = GPUTarget("cuda", capability, 32)
    done = triton.compile(source, target=target, options={"num_warps": num_warps})
    text, path = done.asm["ptx"], folder / "kernel.ptx"
    path.write_text(text)
    arch = re.search(r"\.target (\w+)", text)[1]
    said = subprocess.run(
        [triton.knobs.nvidia.ptxas.path, "-v", f"--gpu-name={arch}", path, "-o", folder / "cubin"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    return Built(
        shared_bytes=done.metadata.shared,
        spilled_bytes=int(spills[1]) + int(spills[2]),
        registers=int(re.search(r"Used (\d+) registers", said)[1]),
        wide_loads=len(re.findall(r"ld\.global\S*\.v4\.b32|cp\.async\.cg\.\S+ .*, 0x10", text)),
        products=text.count("mma.sync") + text.count("wgmma.mma"),
    )


class _Absent:
    """Triton's driver of a device that is not here."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def only_built(capability: int) -> Iterator[list[str]]:
    """While this is open, a launch builds the kernel for its arguments and runs nothing; yields the
    names of the kernels launched."""
    launched: list[str] = []
    run = JITFunction.run

    def build(self, *args, grid, warmup, **options):
        run(self, *args, grid=grid, warmup=True, **options)
        launched.append(self.fn.__name__)

    with pytest.MonkeyPatch.context() as patch:
        # `set_active` cannot be taken back: `reset_active` looks for a device
        patch.setattr(driver, "_active", _Absent(capability))
        patch.setattr(JITFunction, "run", build)
        yield launched
