"""Fixtures that the tests share: instruction sets, and small checkpoints, made once a session."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from abilities import skip_without_abilities, with_ability
from children import start_worker
from deprecations import raise_logged_deprecations
from interpreter import use_interpreter

# Triton decides when a kernel is defined whether it is interpreted, so before any is imported.
use_interpreter()

raise_logged_deprecations()

# On a loaded machine a test may take any time; its bits are what counts.
hypothesis.settings.register_profile("gramary", deadline=None)
hypothesis.settings.load_profile("gramary")


def pytest_configure() -> None:
    """Keeps torch on one thread: the tensors are small, and spinning threads starve the others.

    The core keeps to the instructions that the environment allows, also where no table is opened.
    """
    from gramary.native.instructions import cap_instructions
    from gramary.settings import Settings

    torch.set_num_threads(1)
    cap_instructions(Settings.from_env().instructions)


SIMD_LEVELS = {"scalar": 0, "avx2": 1, "avx512": 2}


@pytest.fixture(params=["scalar", *map(with_ability, ("avx2", "avx512"))])
def simd_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with the native core on each instruction set that this CPU has."""
    from gramary.native import _core

    _core.set_simd_level(SIMD_LEVELS[request.param])
    yield request.param
    _core.set_simd_level(_core.detected_simd_level())


@pytest.fixture(autouse=True, scope="session")
def start_real_worker() -> Iterator[Callable[..., Any]]:
    """Forks the row service's workers; yields the function that starts one as users do."""
    from gramary.offload.service import server

    real = server.start_worker
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "start_worker", start_worker)
        yield real


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what needs an ability that this machine does not have, with the reason."""
    skip_without_abilities(config, items)
