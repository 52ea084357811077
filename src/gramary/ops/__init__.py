"""Operations, one file each; `reference` is the truth, `_cpu` and `_triton` are the backends."""
