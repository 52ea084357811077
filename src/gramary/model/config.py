"""A model's configuration, wherever it comes from, as fields that are read with care."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gramary.errors import ConfigError
from gramary.model.foreign_files import HEAD_BYTES, recognise, recognise_path
from gramary.model.foreign_folders import recognise_folder

MAX_CONFIG_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Fields:
    """The fields of a text model's configuration.

    Attributes:
        values: fields by name.
        origin: where they come from, for messages; empty for objects in memory.
    """

    values: Mapping[str, Any]
    origin: str = ""

    def get(self, name: str) -> Any:
        """Returns a field, or None where it is absent or null."""
        return self.values.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an integer field.

        Raises:
            ConfigError: the field is missing and has no default, or is not an integer.
        """
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int:
            raise self.error(name, "an integer", value)
        return value

    def error(self, name: str, expected: str, value: Any) -> ConfigError:
        """Returns the error that names a field, what was expected of it and what came."""
        got = repr(value) if name in self.values else "no such field"
        return ConfigError(f"{self._prefix()}{name}: expected {expected}, got {got}")

    @contextlib.contextmanager
    def as_origin(self) -> Iterator[None]:
        """Names the origin in a ConfigError raised inside that does not yet."""
        try:
            yield
        except ConfigError as error:
            if str(error).startswith(self._prefix()):
                raise
            raise ConfigError(f"{self._prefix()}{error}") from None

    def _prefix(self) -> str:
        return f"{self.origin}: " if self.origin else ""


def read_config(config: object) -> Fields:
    """Returns the fields of a text model's configuration.

    Args:
        config: a mapping, an object with `to_dict()`, or the path of a `config.json` or of a
            folder that holds one (symbolic links are followed, as in a hub cache). The fields of
            `text_config`, where there is one, stand for the whole.

    Raises:
        ConfigError: it is none of these, or the file cannot be read or holds no JSON object.
    """
    if isinstance(config, (str, os.PathLike)):
        path = _config_path(Path(config))
        return _text_fields(_read_json(path), str(path))
    return _text_fields(_as_mapping(config, "config"), "")


def read_weights_name(folder: Path) -> str | None:
    """Returns the file that a folder's `config.json` names as the model's weights, if it does.

    That is `transformers_weights` of the level that the model's class reads: the text model's,
    where a whole model's configuration is given for the class of text alone.

    Raises:
        ConfigError: the configuration cannot be read, or the name is no string.

    Source: `PreTrainedModel.from_pretrained` of transformers 5.24 (modeling_utils.py).
    """
    path = folder / "config.json"
    if not path.exists():
        return None
    values = _read_json(path)
    text, classes = values.get("text_config"), values.get("architectures")
    if isinstance(text, Mapping) and classes == ["Qwen4ExpForCausalLM"]:
        values = text
    name = values.get("transformers_weights")
    if name is not None and not isinstance(name, str):
        raise Fields(values, str(path)).error("transformers_weights", "a file's name", name)
    return name


def _text_fields(values: Mapping[str, Any], origin: str) -> Fields:
    text = values.get("text_config")
    if text is None:
        return Fields(values, origin)
    name = f"{origin}: text_config" if origin else "text_config"
    return Fields(_as_mapping(text, name), origin)


def _as_mapping(value: object, name: str) -> Mapping[str, Any]:
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name}: expected a mapping, a transformers configuration or a path, "
            f"got {type(value).__name__}"
        )
    return value


def _config_path(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        facts = path.stat()
        # Anything else may block for ever when it is read.
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigError(f"{path}: expected a file, got something else")
        if facts.st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path}: expected a configuration, got more than 64 MiB")
        text = path.read_bytes()
        values = json.loads(text.decode())
    except OSError as error:
        found = recognise_path(path) or recognise_folder(path.parent)
        raise ConfigError(
            f"{path}: expected a readable config.json, got {error.strerror or error}"
            f"{f'; this is {found}' if found else ''}"
        ) from None
    except (ValueError, RecursionError) as error:
        found = recognise(text[:HEAD_BYTES], len(text))
        raise ConfigError(f"{path}: expected JSON, got {found or error}") from None
    if isinstance(values, dict) and "model_type" not in values:
        found = recognise(text[:HEAD_BYTES], len(text))
        if found is not None:
            raise ConfigError(f"{path}: expected a model's configuration, got {found}")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return values


__all__ = ["Fields", "read_config", "read_weights_name"]
