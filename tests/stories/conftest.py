"""What the stories share: the device they run on, models/tiny's texts, and the oracles."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from small_engine import TINY, Engine
from stories.oracle import Oracle, PatientEngine
from transformers import AutoTokenizer
from transformers.utils import logging

from tools.fuzzing import truth

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
TEXTS = (
    "And it came to pass in those days, that the king of Judah sent messengers",
    "Blessed is the man that walketh not in the counsel of the wicked",
    "In the beginning God created the heavens and the earth, and the earth was waste",
)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Every story runs on the CPU, and on a GPU where there is one."""
    return request.param


@pytest.fixture(autouse=True, scope="session")
def whole_float32() -> None:
    """Convolutions of float32 multiply float32, on a GPU too."""
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Token ids of some verses."""
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    return [tokenizer(text).input_ids for text in TEXTS]


@pytest.fixture(scope="session")
def oracle() -> Callable[..., Oracle]:
    """`oracle(device, dtype, pack=None)`: transformers over the decoded rows of models/tiny.

    The rows are read and decoded by `tools.fuzzing.truth`, which knows nothing of gramary; `pack`
    takes those of a pack instead of the model's own.
    """
    made: dict[object, Oracle] = {}

    def make(device: str, dtype: torch.dtype = torch.float32, pack: Path | None = None) -> Oracle:
        key = (device, dtype, pack)
        if key not in made:
            true = truth.read_pack(pack.read_bytes()) if pack else truth.read_model(TINY, 0)
            made[key] = Oracle(device, dtype, true.decode(dtype))
        return made[key]

    return make


@pytest.fixture(scope="module")
def engine() -> Iterator[Callable[[str], Engine]]:
    """`engine(device)`: an engine with the table on disk; its requests are released by the test."""
    made: dict[str, Engine] = {}

    def make(device: str) -> Engine:
        if device not in made:
            made[device] = PatientEngine(device)
        return made[device]

    yield make
    for serving in made.values():
        serving.close()
