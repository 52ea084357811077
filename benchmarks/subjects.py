"""What `gramary bench` can be asked for, and which benchmarks answer on this machine."""

from __future__ import annotations

# subject: device: modules of this folder.
SUBJECTS: dict[str, dict[str, tuple[str, ...]]] = {
    "embed": {"cpu": ("ngram_ids", "embed_cpu"), "cuda": ("embed_gpu", "gpu_host_path")},
    "state": {"cpu": ("state_cpu",), "cuda": ("gpu_state",)},
    "overlap": {"cpu": ("overlap",), "cuda": ("overlap",)},
    "disk": {"cpu": ("disk",), "cuda": ("disk",)},
    "load": {"cpu": ("load", "pack"), "cuda": ("load", "gpu_full_table")},
    "end-to-end": {"cpu": ("end_to_end",), "cuda": ("end_to_end",)},
}


def choose_device(device: str | None) -> str:
    """Returns "cuda" where a GPU is, unless another device is asked for."""
    import torch

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def modules_of(names: list[str], device: str) -> list[str]:
    """Returns the modules that names stand for, each once: subjects, and modules themselves."""
    chosen: dict[str, None] = {}
    for name in names:
        chosen.update(dict.fromkeys(SUBJECTS.get(name, {}).get(device, (name,))))
    return list(chosen)
