"""Site of the documentation: each Markdown page as HTML, beside the contents of docs/README.md.

``python -m tests.packaging.site FOLDER`` writes it. It opens without a server and a network. Links
between pages and their headings are those of the Markdown. Other files that a page links to are
copied; a link to a folder is its text.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

HOME: Final = Path(__file__).parents[2]
CONTENTS: Final = HOME / "docs" / "README.md"
PAGES: Final = sorted(
    (*HOME.glob("*.md"), *HOME.glob("docs/**/*.md"), HOME / "benchmarks" / "README.md")
)
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_STYLE: Final = """
:root { color-scheme: light dark }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; display: flex; gap: 2rem }
nav { flex: 0 0 19rem; height: 100vh; overflow: auto; position: sticky; top: 0; padding: 0 1.5rem;
  font-size: 14px; border-right: 1px solid #8884; box-sizing: border-box }
nav h1 { font-size: 1.1rem } nav ul { padding-left: 1rem }
main { flex: 1; min-width: 0; max-width: 58rem; padding: 0 1.5rem 4rem }
pre, code { font: 13px/1.45 ui-monospace, monospace }
pre { overflow: auto; padding: .8rem; background: #8882; border-radius: 4px }
table { border-collapse: collapse; display: block; overflow: auto; font-size: 14px }
th, td { border: 1px solid #8886; padding: .3rem .6rem; vertical-align: top; text-align: left }
img { max-width: 100%; background: #fff } a:link { color: LinkText }
@media (max-width: 60rem) {
  body { display: block }
  nav { height: auto; position: static; border: 0 }
}
"""


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub names it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def output_of(page: Path) -> Path:
    """Return where a page is in the site: the README of the project is the first page."""
    path = page.relative_to(HOME)
    return Path("index.html") if path == Path("README.md") else path.with_suffix(".html")


def write(folder: Path) -> list[Path]:
    """Write the site; return the pages that were written."""
    written = []
    for page in PAGES:
        target = folder / output_of(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        files: set[Path] = set()
        body, contents = (_rendered(one, page, files) for one in (page, CONTENTS))
        title = re.findall(r"^# (.+)$", page.read_text(), re.MULTILINE)[0]
        target.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
            f"<style>{_STYLE}</style></head><body><nav>{contents}</nav><main>{body}</main>"
            f"</body></html>\n"
        )
        for file in files:
            copy = folder / file.relative_to(HOME)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        written.append(target)
    return written


def _rendered(source: Path, page: Path, files: set[Path]) -> str:
    """Return the HTML of a source as a part of a page; add the other files that it links to."""
    tokens = _MARKDOWN.parse(source.read_text())
    seen: Counter[str] = Counter()
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and source == page:  # ids are those of the page alone
            name = anchor(_text(tokens[at + 1].children or ()))
            token.attrSet("id", f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
        for child in token.children or ():
            _resolve(child, source, page, files)
    html: str = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return html


def _text(tokens: Sequence[Token]) -> str:
    return "".join(one.content for one in tokens if one.type in ("text", "code_inline"))


def _resolve(token: Token, source: Path, page: Path, files: set[Path]) -> None:
    """Change a relative link or image of a source to one of the page in the site."""
    name = {"link_open": "href", "image": "src"}.get(token.type)
    if name is None:
        return
    path, _, heading = str(token.attrGet(name)).partition("#")
    if re.match(r"[a-z]+:", path):
        return
    target = (source.parent / path).resolve() if path else source
    if target.is_dir():
        token.attrs.pop(name)
        return
    if target in PAGES:
        where = HOME / output_of(target)
    else:
        files.add(target)
        where = target
    relative = os.path.relpath(where, (HOME / output_of(page)).parent)
    token.attrSet(name, f"{relative}#{heading}" if heading else relative)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
