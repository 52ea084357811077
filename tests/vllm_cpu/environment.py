"""The environment of processes in which vLLM runs: its settings, and what it finds by name."""

import os
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path

import gramary

ROOT = Path(__file__).resolve().parents[2]
ON_PATH = Path(__file__).resolve().parent / "on_path"
# Without it, vLLM asks another process about the model's class before each boot.
CACHE = ROOT / "build" / "vllm-cache"

SETTINGS = {
    # One thread a process: the tensors are small, and several engines share the machine.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "TRITON_INTERPRET": "1",
    # The engine in the program's own process, which spares two boots; `None` undoes it.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "PYTHONUNBUFFERED": "1",
}

# Settings of whoever runs the tests would change what they see.
FOREIGN = ("VLLM_", "GRAMARY_", "PYTHON", "TRITON_", "HF_", "OMP_")


def make_environment(folder: Path, changes: dict[str, str | None] | None = None) -> dict[str, str]:
    """Returns the environment; `folder` takes what is written for it. `None` removes a name."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)
    }
    paths = [write_distributions(folder / "metadata"), ON_PATH, Path(gramary.__file__).parents[1]]
    environment |= SETTINGS
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    environment["VLLM_CACHE_ROOT"] = str(CACHE)
    environment["VLLM_CONFIG_ROOT"] = str(folder / "config")
    for name, value in (changes or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def write_distributions(folder: Path) -> Path:
    """Writes metadata of distributions that Python then finds on its path; returns the folder.

    - the tests' two plugins;
    - one named `vllm`, which the command line asks for its version: the CPU build's is `vllm-cpu`;
    - gramary's own, where the environment has none (a tree that is used where it lies).
    """
    plugins = {
        "vllm.platform_plugins": {"tests_platform": "cpu_platform:register"},
        "vllm.general_plugins": {"tests_model": "cpu_model:register"},
    }
    _write_distribution(folder, "gramary-tests-on-cpu", "1", plugins)
    _write_distribution(folder, "vllm", f"{version('vllm-cpu')}+cpu", {})
    if not any(distributions(name="gramary")):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        groups = project.get("entry-points", {})
        _write_distribution(folder, "gramary", project["version"], groups)
    return folder


def _write_distribution(
    folder: Path, name: str, number: str, groups: dict[str, dict[str, str]]
) -> None:
    target = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    target.mkdir(parents=True, exist_ok=True)
    (target / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (target / "entry_points.txt").write_text("\n".join(lines) + "\n")
