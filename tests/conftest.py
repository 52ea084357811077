"""Fixtures that the tests share: instruction sets, and small checkpoints, made once a session."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from deprecations import raise_logged_deprecations
from interpreter import use_interpreter

# Triton decides when a kernel is defined whether it is interpreted, so before any is imported.
use_interpreter()

raise_logged_deprecations()

# On a loaded machine a test may take any time; its bits are what counts.
hypothesis.settings.register_profile("gramary", deadline=None)
hypothesis.settings.load_profile("gramary")


def pytest_configure() -> None:
    """Keeps torch on one thread: the tensors are small, and spinning threads starve the others."""
    torch.set_num_threads(1)


SIMD_LEVELS = {"scalar": 0, "avx2": 1, "avx512": 2}


@pytest.fixture(params=SIMD_LEVELS)
def simd_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with the native core on each instruction set that this CPU has."""
    from gramary.native import _core

    level = SIMD_LEVELS[request.param]
    if level > _core.detected_simd_level():
        pytest.skip(f"this CPU has no {request.param}")
    _core.set_simd_level(level)
    yield request.param
    _core.set_simd_level(_core.detected_simd_level())


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_checkpoint(**options)`: a checkpoint of `make_model(..., **options)`, not to change."""
    made: dict[str, Path] = {}

    def make(**options: Any) -> Path:
        # Imported where it is used: transformers takes seconds.
        from make_model import make_model
        from transformers.utils import logging

        logging.disable_progress_bar()
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = make_model(tmp_path_factory.mktemp("model") / "model", **options)
        return made[key]

    return make


@pytest.fixture
def copy_checkpoint(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """`copy_checkpoint(**options)`: a copy of such a checkpoint that the test may spoil."""

    def copy(**options: Any) -> Path:
        return Path(shutil.copytree(make_checkpoint(**options), tmp_path / "copy"))

    return copy


@pytest.fixture(scope="session", params=["bf16", "fp16", "fp32", "fp8", "nvfp4"])
def checkpoint(request: pytest.FixtureRequest, make_checkpoint: Callable[..., Path]) -> Path:
    """A checkpoint of each codec in turn, not to change."""
    return make_checkpoint(codec=request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs CUDA devices that are not here, with the reason."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for item in items:
        if item.get_closest_marker("gpu") and num_gpus < 1:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        elif item.get_closest_marker("two_gpus") and num_gpus < 2:
            item.add_marker(pytest.mark.skip(reason=f"needs two CUDA devices, {num_gpus} here"))
