"""All planted bugs: every ``*_PLANTS`` tuple of the ``*_plants.py`` modules beside this one."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Final

from tests.planted.plant import Plant


def _load_plants() -> tuple[Plant, ...]:
    names = sorted(path.stem for path in Path(__file__).parent.glob("*_plants.py"))
    modules = [
        importlib.import_module(f"tests.planted.{name}")
        for name in names
        if not name.startswith("test_")
    ]
    tables = [
        table
        for module in modules
        for name, table in sorted(vars(module).items())
        if name.endswith("_PLANTS")
    ]
    return tuple(plant for table in tables for plant in table)


EVERY_PLANT: Final = _load_plants()
