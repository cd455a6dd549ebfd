"""Planted bugs fit the sources as they are, and name tests that exist; ``run`` plants them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.planted.access_plants import ACCESS_PLANTS
from tests.planted.answer_plants import ANSWER_PLANTS
from tests.planted.plant import Plant
from tests.planted.plants import PLANTS as OF_ONE_LOG
from tests.planted.quorum_plants import QUORUM_PLANTS

HOME = Path(__file__).parents[2]
PLANTS = (*OF_ONE_LOG, *QUORUM_PLANTS, *ACCESS_PLANTS, *ANSWER_PLANTS)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.bug)
def test_a_planted_bug_fits(plant: Plant, tmp_path: Path) -> None:
    copy = tmp_path / plant.path
    copy.parent.mkdir(parents=True)
    text = (HOME / plant.path).read_text()
    copy.write_text(text)
    assert plant.apply(tmp_path) == text
    assert ast.dump(ast.parse(copy.read_text())) != ast.dump(ast.parse(text))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.bug)
def test_the_tests_that_must_find_it_exist(plant: Plant) -> None:
    assert plant.tests
    for test in plant.tests:
        path, _, name = test.partition("::")
        functions = ast.walk(ast.parse((HOME / path).read_text()))
        names = {one.name for one in functions if isinstance(one, ast.FunctionDef)}
        assert not name or name.split("::")[-1].partition("[")[0] in names, test


def test_every_bug_has_a_name_of_its_own() -> None:
    assert len({plant.bug for plant in PLANTS}) == len(PLANTS) >= 15
