"""Settings: frozen, range-checked, and named when they are wrong."""

import dataclasses

import pytest

from gramary.errors import ArgumentError, GramaryError, SettingsError
from gramary.settings import ENVIRONMENT, Settings, chosen_settings

# One value out of range, and one that does not parse, for each variable.
BAD_VALUES = {
    "GRAMARY_NUM_THREADS": ["-1", "1025", "two"],
    "GRAMARY_INSTRUCTIONS": ["sse", "AVX2"],
    "GRAMARY_CHECK_IDS": ["maybe"],
    "GRAMARY_DEBUG_CHECKS": ["2"],
    "GRAMARY_MEMORY_LIMIT_BYTES": ["0", str(2**63), "1GiB"],
    "LOCAL_WORLD_SIZE": ["0", "many"],
    "GRAMARY_VRAM_RESERVE_GIB": ["-0.5", "nan", "inf", "x"],
    "GRAMARY_HOST_GIB": ["-1", "nan", "all"],
    "GRAMARY_DISK_READER": ["aio"],
    "GRAMARY_DIRECT_IO": ["on"],
    "GRAMARY_MMAP_BUDGET_MIB": ["0", "lots"],
    "GRAMARY_HUGE_PAGES": ["always"],
    "GRAMARY_SHARE_FOLDER": ["shm"],
    "GRAMARY_PIN_HOST": ["perhaps"],
    "GRAMARY_HOST_GATHER_ROWS": ["-1", "many"],
    "GRAMARY_FORCE_DOORBELL": ["-1"],
    "GRAMARY_POLL": ["busy"],
    "GRAMARY_REQUEST_TIMEOUT_S": ["0", "-1", "nan", "soon"],
}
CASES = [(name, text) for name, texts in BAD_VALUES.items() for text in texts]


@pytest.mark.behaviour(35)
@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_bad_value_is_an_error_that_names_the_variable(name: str, text: str) -> None:
    """Behaviour 35: the message holds the variable, its range and the value."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: text})
    expected = next(variable.expected for variable in ENVIRONMENT if variable.name == name)
    assert name in str(caught.value)
    assert expected in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.behaviour(35)
def test_every_variable_has_a_refused_value() -> None:
    """Behaviour 35: no variable is read without a check."""
    assert set(BAD_VALUES) == {variable.name for variable in ENVIRONMENT}


@pytest.mark.behaviour(13)
@pytest.mark.parametrize("variable", ENVIRONMENT, ids=lambda variable: variable.field)
def test_a_bad_field_is_refused_where_it_is_given(variable: object) -> None:
    """Behaviour 13: an option that means nothing is refused, not dropped."""
    with pytest.raises(SettingsError, match=f"settings.{variable.field}"):
        Settings(**{variable.field: object()})


def test_values_of_the_environment_are_parsed() -> None:
    settings = Settings.from_env(
        {"GRAMARY_NUM_THREADS": " 3 ", "GRAMARY_DIRECT_IO": "No", "GRAMARY_HOST_GIB": "1.5"}
    )
    assert (settings.num_threads, settings.direct_io, settings.host_gib) == (3, False, 1.5)


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert Settings.from_env({"GRAMARY_NUM_THREADS": ""}) == Settings()


def test_overrides_win_over_the_environment_even_a_bad_one() -> None:
    assert Settings.from_env({"GRAMARY_NUM_THREADS": "bad"}, num_threads=2).num_threads == 2


def test_a_callers_none_means_the_environments_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAMARY_POLL", "sleep")
    given = Settings(poll="spin")
    assert chosen_settings(given) is given
    assert chosen_settings(None).poll == "sleep"
    for wrong in ("spin", {}, 0, False):
        with pytest.raises(ArgumentError, match="settings: expected a Settings"):
            chosen_settings(wrong)  # type: ignore[arg-type]
    monkeypatch.setenv("GRAMARY_POLL", "never")
    with pytest.raises(SettingsError, match="GRAMARY_POLL"):
        chosen_settings(None)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().num_threads = 4


def test_only_the_settings_module_reads_the_environment() -> None:
    from pathlib import Path

    import gramary

    for path in Path(gramary.__file__).parent.rglob("*.py"):
        if path.name != "settings.py":
            text = path.read_text(encoding="utf-8")
            assert "os.environ" not in text, path
            assert "getenv" not in text, path


def test_every_settings_error_is_a_gramary_error() -> None:
    assert issubclass(SettingsError, GramaryError)
