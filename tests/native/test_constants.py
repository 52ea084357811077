"""Objects of the core are no constants: kernels' globals may outlive the module, as a leak."""

import dataclasses
import enum
import sys
from collections.abc import Iterator

import gramary.offload.connector
import gramary.ops.extents
import gramary.reading.cuda  # noqa: F401


def constants() -> Iterator[tuple[str, object]]:
    """Yields the values of our modules, and the defaults of their records, by name."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("gramary.") or name == "gramary.native._core":
            continue
        for key, value in list(vars(module).items()):
            yield f"{name}.{key}", value
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                for field in dataclasses.fields(value):
                    yield f"{name}.{key}.{field.name}", field.default


def test_no_constant_is_an_object_of_the_core() -> None:
    found = [
        name
        for name, value in constants()
        if type(value).__module__ == "gramary.native._core"
        and not isinstance(value, (type, enum.Enum))
    ]
    assert found == []
