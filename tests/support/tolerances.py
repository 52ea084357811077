"""How far two backends of an operation with rounding may lie apart, one table per dtype.

Hash, gather, decode, windows copied and statuses are compared bit for bit and have no line here.
Only the order of float32 sums over a stream (two means and a dot product) is free; it moves a
gate by the last bit of the dtype, and what is computed from it with it.
"""

import torch

# dtype: (relative, absolute)
GATE_CONV = {
    torch.float32: (1e-5, 1e-5),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3e-2, 2e-2),
}

# Share of elements that may differ at all where dtypes round: a gate flips its last bit rarely.
GATE_CONV_SHARE = {torch.float32: 1.0, torch.float16: 0.1, torch.bfloat16: 0.1}
