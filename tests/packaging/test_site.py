"""The site of the documentation has every page, and each of its links has a target in it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from tests.packaging.site import PAGES, write


class Links(HTMLParser):
    """Links, images and ids of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name == "id" and value:
                self.ids.add(value)


def test_each_link_of_the_site_has_a_target_in_it(tmp_path: Path) -> None:
    written = write(tmp_path / "site")
    assert len(written) == len(PAGES) > 20
    pages = {page.resolve(): Links(page) for page in written}
    assert sum(len(page.links) for page in pages.values()) > 500
    for path, page in pages.items():
        for link in page.links:
            if link.startswith("https://"):
                continue
            file, _, heading = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{path} links to {link}"
            assert not heading or heading in pages[target].ids, f"{path} links to {link}"


def test_a_page_requests_nothing_from_a_network(tmp_path: Path) -> None:
    for page in write(tmp_path / "site"):
        text = page.read_text()
        assert "<script" not in text
        assert 'src="http' not in text
        assert "<link" not in text
