"""What a receipt says about the machine, the versions and the code that ran; never its name."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Where receipts lie.
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "numpy", "triton", "transformers", "safetensors", "vllm", "cuda-bindings")


def describe_run(
    name: str,
    sources: Iterable[str],
    command: Iterable[str],
    commit: str | None = None,
    clean: bool | None = None,
) -> dict[str, Any]:
    """Returns a receipt's head, but for its schema.

    Args:
        name: the benchmark or the run.
        sources: glob patterns, from the repository's root, of the code that was measured.
        command: words to repeat the run with; folders are cut off.
        commit: revision of an exported tree; None asks git.
        clean: whether that tree was unchanged; only with `commit`.
    """
    return {
        "name": name,
        "command": [without_folder(word) for word in command],
        "revision": describe_revision(commit, clean),
        "sources": hash_sources(sources),
        "taken_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": describe_hardware(),
        "versions": describe_versions(),
    }


def without_folder(word: str) -> str:
    """Returns a word of a command whose path, if it is or gives an absolute one, is a bare name."""
    option, equals, value = word.rpartition("=")
    return option + equals + value.rstrip("/").rpartition("/")[2] if value[:1] == "/" else word


def describe_hardware() -> dict[str, Any]:
    """Returns the receipt's `hardware`: processor, memory and GPUs."""
    import torch

    from gramary.native import _core

    gpus = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": facts.name,
                "memory_bytes": facts.total_memory,
                "capability": f"{facts.major}.{facts.minor}",
            }
        )
    return {
        "cpu": _cpu_name(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "simd": ("scalar", "avx2", "avx512")[_core.simd_level()],
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": gpus,
    }


def describe_versions() -> dict[str, str]:
    """Returns the receipt's `versions`: Python, gramary, CUDA and the packages that matter."""
    import torch

    import gramary

    versions = {"python": platform.python_version(), "gramary": gramary.__version__}
    versions["kernel"] = ".".join(platform.release().split(".")[:2])
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    # A tree on the path without metadata (an export) still knows its torch.
    versions.setdefault("torch", str(torch.__version__))
    return versions


def describe_revision(commit: str | None, clean: bool | None) -> dict[str, Any]:
    """Returns the receipt's `revision`: what was passed, else what git says, else unknown.

    Args:
        commit: the revision of an exported tree, or None to ask git.
        clean: whether that tree was unchanged; only with `commit`.
    """
    if commit is not None:
        return {"commit": commit, "clean": clean}
    head = _git("rev-parse", "HEAD")
    if head is None or _git("rev-parse", "--show-prefix") != "":
        return {"commit": None, "clean": None}
    # Receipts themselves are the run's product and do not make the tree unclean.
    changes = _git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return {"commit": head, "clean": changes == ""}


def hash_sources(patterns: Iterable[str]) -> dict[str, str]:
    """Returns {path: sha256} of the repository's files that match the glob patterns.

    Raises:
        FileNotFoundError: a pattern matches no file.
    """
    hashes = {}
    for pattern in patterns:
        paths = sorted(path for path in ROOT.glob(pattern) if path.is_file())
        if not paths:
            raise FileNotFoundError(f"no source matches {pattern!r}")
        for path in paths:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            hashes[str(path.relative_to(ROOT))] = digest
    return hashes


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("model name", "cpu part")):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
