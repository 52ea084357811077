"""Triton kernels; imported only where CUDA is, or where Triton's interpreter stands in for it."""
