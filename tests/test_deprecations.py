"""Deprecations that torch announces are errors here, logged ones too."""

import importlib
import logging
import sys
import warnings

import pytest


def test_a_logged_deprecation_of_torch_is_an_error() -> None:
    logger = logging.getLogger("torch._library.some_module")
    with pytest.raises(DeprecationWarning, match=r"torch\._library\.some_module: name is deprec"):
        logger.warning("%s is deprecated, use another instead", "name")


def test_other_words_in_the_log_of_torch_are_none() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        logging.getLogger("torch._library").warning("compiling took long")
        logging.getLogger("gramary").warning("a name is deprecated")
    assert seen == []


@pytest.mark.needs("renamed_in_torch")
def test_the_names_that_torch_2_14_gave_up_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._opaque_base", raising=False)
    with pytest.raises(DeprecationWarning, match=r"use torch\._custom_class_base instead"):
        importlib.import_module("torch._opaque_base")
