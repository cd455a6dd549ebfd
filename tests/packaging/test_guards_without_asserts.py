"""No guard against hostile input is an ``assert``, which ``python -O`` leaves out.

The sources are copied without their asserts, and the tests of attacks pass on the copy.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.planted.run import SOURCES, Copy

pytestmark = pytest.mark.nightly

ATTACKS = (
    "tests/wire/test_hostile_bytes.py",
    "tests/wire/test_frames.py",
    "tests/wire/test_sasl.py",
    "tests/records/test_fuzz.py",
    "tests/records/test_damage.py",
    "tests/client/remote/test_invalid_responses.py",
    "tests/node/apis/test_any_request.py",
    "tests/node/test_hostile_port.py",
)


class WithoutAsserts(ast.NodeTransformer):
    """Replaces each assert by ``pass``; ``count`` is their number."""

    count = 0

    def visit_Assert(self, node: ast.Assert) -> ast.Pass:
        self.count += 1
        return ast.copy_location(ast.Pass(), node)


def test_attacks_are_refused_without_the_asserts_of_the_sources(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    asserts = WithoutAsserts()
    for root in SOURCES:
        for path in sorted((tmp_path / root).rglob("*.py")):
            path.write_text(ast.unparse(asserts.visit(ast.parse(path.read_text()))))
    assert asserts.count > 100
    result = copy.run(ATTACKS)
    assert (result.test, result.trouble) == (None, None)
