"""The option of a vLLM engine, and that vLLM is left alone where it is not given."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from gramary.errors import ArgumentError, UnsupportedError
from gramary.integrations.vllm.options import Options, chosen, is_asked
from gramary.integrations.vllm.registering import watch
from gramary.integrations.vllm.versions import require_version
from gramary.settings import VLLM_PLACEMENT


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VLLM_PLACEMENT, raising=False)


def test_an_object_gives_the_options() -> None:
    options = chosen({"gramary": {"placement": "host=1GiB,disk", "split_mixed": False}})
    assert options == Options(placement="host=1GiB,disk", split_mixed=False)


def test_a_string_is_the_placement() -> None:
    assert chosen({"gramary": "disk"}) == Options(placement="disk")


def test_the_variable_asks_where_the_configuration_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VLLM_PLACEMENT, "disk")
    assert chosen({}) == Options(placement="disk")
    assert chosen({"gramary": "host"}) == Options(placement="host")
    # An explicit no wins: that is how a bug is told apart from a bug of the engine.
    assert chosen({"gramary": False}) is None


@pytest.mark.parametrize("config", [None, {}, {"gramary": None}, {"gramary": False}, {"other": 1}])
def test_nothing_is_asked(config: object) -> None:
    assert not is_asked(config)
    assert chosen(config) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"placment": "disk"}, "placment"),
        ({"placement": ""}, "placement"),
        ({"placement": 3}, "placement"),
        ({"table": 3}, "a path"),
        ({"kv_gib": -1}, "GiB"),
        ({"kv_gib": float("nan")}, "GiB"),
        ({"kv_gib": True}, "GiB"),
        ({"worker": "thraed"}, "process"),
        ({"num_threads": 0}, "1024"),
        ({"num_threads": True}, "1024"),
        ({"rounding": "bf16"}, "float32"),
        ({"prefill_early_request": "no"}, "true or false"),
        (["disk"], "an object"),
        (True, "an object"),
    ],
)
def test_a_wrong_value_is_named(value: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as caught:
        chosen({"gramary": value})
    assert "gramary" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "is_cpu", "is_served"),
    [
        ("0.33.0", False, True),
        ("0.33.2+cu130", False, True),
        ("0.33.0", True, True),
        ("0.32.0+cpu", True, True),
        ("0.32.0", False, False),
        ("0.34.0", False, False),
        ("0.3.3", False, False),
        ("dev", False, False),
    ],
)
def test_versions(version: str, is_cpu: bool, is_served: bool) -> None:
    if is_served:
        require_version(version, is_cpu)
    else:
        with pytest.raises(UnsupportedError, match=r"0\.33\.x"):
            require_version(version, is_cpu)


class EngineArgs:
    """Stands for vLLM's class of that name."""

    def __init__(self, additional_config: object) -> None:
        self.additional_config = additional_config

    def create_engine_config(self, *words: str) -> object:
        return SimpleNamespace(words=words)


def test_an_engine_that_does_not_ask_gets_what_vllm_makes() -> None:
    class Watched(EngineArgs):
        create_engine_config = EngineArgs.create_engine_config

    stock = Watched.create_engine_config
    watch(Watched)
    watch(Watched)
    assert Watched.create_engine_config.before_gramary is stock  # type: ignore[attr-defined]
    assert Watched({"other": 1}).create_engine_config("a", "b").words == ("a", "b")  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="placment"):
        Watched({"gramary": {"placment": "disk"}}).create_engine_config()


def test_registering_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, gramary.integrations.vllm as plugin; plugin.register(); "
        "print([name for name in ('torch', 'vllm', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
