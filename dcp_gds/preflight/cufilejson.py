"""cuFile's settings: the file cufile.json, whose lines may have comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["SETTINGS_DEFAULT", "SETTINGS_VARIABLE", "parse_settings", "without_compat"]

SETTINGS_VARIABLE = "CUFILE_ENV_PATH_JSON"
SETTINGS_DEFAULT = "/etc/cufile.json"


def parse_settings(text: str) -> dict[str, Any]:
    """Return what the file's text holds.

    Raises
    ------
    ValueError
        If it is no JSON object but for comments, or its `properties` are none.
    """
    kept = (line for line in text.splitlines() if not line.lstrip().startswith("//"))
    settings = json.loads("\n".join(line.split(" //")[0] for line in kept))
    if not isinstance(settings, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - a file has contents, not types
    if not isinstance(settings.get("properties", {}), dict):
        raise ValueError("properties is no object")  # noqa: TRY004
    return settings


def without_compat(settings: Mapping[str, Any], *, log_directory: str) -> str:
    """Return the text of a file with these settings, but cuFile's compat mode forbidden.

    All else is as it was: which way to the drive cuFile takes, P2PDMA for one, is set there too.
    """
    properties = {**settings.get("properties", {}), "allow_compat_mode": False}
    logging = {**settings.get("logging", {}), "dir": log_directory}
    return json.dumps({**settings, "properties": properties, "logging": logging})
