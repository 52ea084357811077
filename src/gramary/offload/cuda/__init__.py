"""The connector's device half on CUDA; imported only where Triton is."""
