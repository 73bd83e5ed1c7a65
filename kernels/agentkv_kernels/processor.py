"""Which dtypes the processor multiplies."""

from typing import Any

import torch


def multiplies(dtype: torch.dtype) -> bool:
    """Return whether the processor has products of a dtype, which torch's libraries then use."""
    cpu: Any = torch.cpu
    if dtype == torch.bfloat16:
        return bool(cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True
