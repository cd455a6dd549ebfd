"""Tables of the command line: aligned columns, one line per row.

Widths are counted in terminal cells, of which a Chinese character has two. The tables use rich's
cells and styles, but not its ``Table``, which lays out each cell as a text of several lines. This
takes 12 to 35 microseconds per cell, which is half a minute for 100,000 partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from raftlog.printable import printable

if TYPE_CHECKING:
    from .output import Output

Cell: TypeAlias = str | tuple[str, str]
"""Text of a cell, or its text and style, see ``Part``."""

Rows: TypeAlias = Callable[[], Iterable[Sequence[Cell]]]
"""Cells of the rows of a table. Called twice, for widths and lines, so no row is kept in memory."""

HEADING: Final = "bold"
GOOD: Final = "green"
WARNING: Final = "yellow"
BAD: Final = "bold red"
_GAP: Final = "  "
_CUT: Final = "..."


def write_table(
    head: Sequence[str], rows: Rows, output: Output, *, widths: Sequence[int] | None = None
) -> None:
    """Print a table, with columns of ``widths``, or as wide as their longest cells."""
    if widths is None:
        widths = [len(name) for name in head]
        for row in rows():
            texts = (cell if isinstance(cell, str) else cell[0] for cell in row)
            widths = [
                max(width, cell_width(text)) for width, text in zip(widths, texts, strict=True)
            ]
    _print_line([(name, HEADING) for name in head], widths, output)
    for row in rows():
        _print_line(row, widths, output)


def _print_line(row: Sequence[Cell], widths: Sequence[int], output: Output) -> None:
    cells = [(cell, "") if isinstance(cell, str) else cell for cell in row]
    while cells and not cells[-1][0]:
        cells.pop()
    filled = [
        (_fill(printable(text), width) + _GAP, style)
        for (text, style), width in zip(cells[:-1], widths, strict=False)
    ]
    output.styled(*filled, *cells[-1:])


def cell_width(text: str) -> int:
    """Return the number of terminal cells that a text takes when it is printed."""
    from rich.cells import cell_len

    return cell_len(printable(text))


def cut(text: str, width: int) -> str:
    """Return a text of at most ``width`` cells; a longer text loses its end."""
    if cell_width(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(printable(text), width - len(_CUT)).rstrip() + _CUT


def cut_middle(text: str, width: int) -> str:
    """Return a text of at most ``width`` cells; a longer text loses its middle."""
    if cell_width(text) <= width:
        return text
    text = printable(text)
    end_width = width // 2
    end = text[-end_width:]
    while cell_width(end) > end_width:
        end = end[1:]
    return cut(text, width - end_width) + end


def table_width(widths: Collection[int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def columns_that_fit(
    widths: Mapping[str, int], first_to_leave: Iterable[str], whole: int
) -> dict[str, int]:
    """Return the widths of the columns of a table that is at most ``whole`` wide, by name.

    As many columns as necessary are left out, in the order of ``first_to_leave``.
    """
    found = dict(widths)
    for name in first_to_leave:
        if table_width(found.values()) <= whole:
            break
        del found[name]
    return found


def _fill(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))
