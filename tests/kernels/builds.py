"""Kernels compiled for devices that are not here, and what the assembler says of them."""

import re
import subprocess
from dataclasses import dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

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
