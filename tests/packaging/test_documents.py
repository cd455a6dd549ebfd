"""Documents name files, headings and tests that exist, and limits as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raftlog.limits import TABLE_FUNCTION_ROWS_MAX

pytestmark = pytest.mark.style

HOME = Path(__file__).parents[2]
PAGES = sorted((*HOME.glob("*.md"), *HOME.glob("docs/**/*.md")))
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)")
TEST = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(HOME)) for page in PAGES])
def test_links_inside_the_project_exist(page: Path) -> None:
    for path, heading in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not heading or heading in anchors(target), f"{page.name} links to #{heading}"


@pytest.mark.parametrize(
    ("page", "count_min"),
    [
        ("docs/guarantees.md", 20),
        ("ARCHITECTURE.md", 10),
        ("CONTRIBUTING.md", 10),
        ("SECURITY.md", 20),
        ("docs/attacks.md", 20),
    ],
)
def test_the_tests_named_by_documents_exist(page: str, count_min: int) -> None:
    named = TEST.findall((HOME / page).read_text())
    assert len(named) >= count_min
    assert not [
        f"{path}::{name}"
        for path, name in named
        if not (HOME / path).exists() or (name and f"def {name}(" not in (HOME / path).read_text())
    ]


def test_the_limit_of_a_table_function_is_that_of_the_code() -> None:
    text = " ".join((HOME / "docs" / "spark.md").read_text().split())
    assert f"it returns at most {TABLE_FUNCTION_ROWS_MAX:,}, more is RAFTLOG_RESULT_TOO" in text
