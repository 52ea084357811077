"""Writes docs/settings.md from the table in gramary.settings; a test compares the two."""

import dataclasses
from pathlib import Path

from gramary.settings import ENVIRONMENT, Settings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

HEAD = """\
# Settings

<!-- Written by tools/write_settings_page.py from gramary.settings.ENVIRONMENT. -->

Settings are read once, when a table, connector or run is opened: `gramary.settings.Settings` is
frozen, and a later change of the environment changes nothing. Pass `settings=` to override them;
`Settings.from_env(num_threads=4)` takes the rest from the environment. A value out of its range is
an error that names the variable.

| variable | field | values | default | meaning |
|---|---|---|---|---|
"""


def render_page() -> str:
    """Returns the text of the settings page."""
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    rows = [
        f"| `{variable.name}` | `{variable.field}` | {variable.expected} "
        f"| `{defaults[variable.field]}` | {variable.meaning} |\n"
        for variable in ENVIRONMENT
    ]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
