"""Reference of the documentation, from docstrings, parsers and schemas.

``python -m tests.packaging.reference`` writes ``docs/reference``; ``test_reference.py`` compares.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum, IntEnum
from pathlib import Path
from typing import Final

import pyarrow as pa
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.packaging.test_errors import KINDS
from tests.support.quorum_processes import free_ports
from tests.support.served_node import served_node

import raftlog.node.config
from pyspark_raftlog import RaftlogDataSource
from raftlog.log.writing.properties import LogConfig
from raftlog.node.config import LimitsConfig
from raftlog_state.cli.controller_node import create_controller, create_publishers
from raftlog_state.cli.main import parser
from raftlog_state.cli.parser import Parser, first_sentence
from raftlog_state.tables.comments import (
    STORED_COMMENTS,
    TABLE_COMMENTS,
    column_comments,
    stored_comments,
)
from raftlog_state.tables.schema import (
    CLUSTER_ID,
    ORIGIN_COLUMNS,
    STORED_TABLES,
    TYPED_TABLES,
)

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
NOTE: Final = "Generated from the sources by `make rewrite`; a test checks that it is up to date."
_CONTROLLER: Final = '[log]\nvalues = "kraft"\n[controller]\nenabled = true\n'


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    return {
        name: "\n".join([f"# {title}", "", NOTE, "", *lines]).rstrip() + "\n"
        for name, title, lines in (
            ("commands.md", "Commands", _commands()),
            ("errors.md", "Error conditions", _errors()),
            ("metrics.md", "Metrics of a node", _metrics()),
            ("node-toml.md", "Configuration of a node", _node()),
            ("spark.md", "Spark data source", _docstring(RaftlogDataSource)),
            ("tables.md", "Delta tables", _tables()),
        )
    }


def _docstring(described: object) -> list[str]:
    """Return a docstring, which has its own form, as a block of text."""
    text = inspect.getdoc(described)
    assert text is not None
    fence = "~~~" if "```" in text else "```"
    return [f"{fence}text", *text.splitlines(), fence]


# --- configuration of a node ----------------------------------------------------------------------


def _node() -> Iterator[str]:
    yield from _docstring(raftlog.node.config)
    for table, defaults in (("log", LogConfig()), ("limits", LimitsConfig())):
        yield from ("", f"## All keys of [{table}]", "", *_docstring(type(defaults)), "")
        yield from ("| key | default |", "| --- | --- |")
        for one in fields(defaults):
            yield f"| `{one.name}` | `{_toml(getattr(defaults, one.name))}` |"


def _toml(value: object) -> str:
    """Return a default as it is written in node.toml, where -1 is no limit."""
    if isinstance(value, Enum):
        return f'"{value.name.lower() if isinstance(value, IntEnum) else value.value}"'
    return "-1" if value is None else str(value)


# --- commands -------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    commands = list(parser().tree())[1:]
    for one in commands:
        name = one.prog.removeprefix("raftlog ")
        yield f"- [{name}](#{_anchor(one.prog)}): {first_sentence(one.description or '')}"
    for one in commands:
        yield from ("", f"## {one.prog}", "", *_command(one))


def _anchor(heading: str) -> str:
    return heading.replace(" ", "-")


def _command(one: Parser) -> Iterator[str]:
    yield from ("```text", one.synopsis(), "```", "")
    yield from ("```text", *(one.description or "").strip().splitlines(), "```")
    options = list(one.arguments())
    if options:
        yield from ("", "| argument | meaning |", "| --- | --- |")
    for _, action in options:
        names = ", ".join(action.option_strings)
        value = one.metavar_of(action)
        shown = " ".join(part for part in (names, value) if part)
        yield f"| `{_cell(shown)}` | {_cell(one.help_of(action))} |"
    if one.epilog:
        yield from ("", "```text", *(line[2:] for line in one.epilog.splitlines()[1:]), "```")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# --- errors ---------------------------------------------------------------------------------------


def _errors() -> Iterator[str]:
    yield (
        "The text of an error begins with its condition in brackets. Conditions are stable; the "
        "rest of the text is not."
    )
    yield ""
    yield from ("| condition | class | meaning |", "| --- | --- | --- |")
    for kind in sorted(KINDS, key=lambda kind: kind.code):
        meaning = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        yield f"| `{kind.code}` | `{kind.__module__}.{kind.__name__}` | {_cell(meaning)} |"


# --- metrics --------------------------------------------------------------------------------------


def _metrics() -> Iterator[str]:
    yield "Metrics of the controller and of snapshots are exported only by nodes that have them."
    yield ""
    yield from ("| metric | type | meaning |", "| --- | --- | --- |")
    for one in sorted(exported_metrics(), key=lambda one: one.name):
        suffix = "_total" if one.type == "counter" else ""
        yield f"| `{one.name}{suffix}` | {one.type} | {one.documentation} |"


def exported_metrics() -> list[Metric]:
    """Return the metrics that a node serves while it leads, with a controller."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/metrics"
    request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text"})

    def get() -> str:
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(response.read().decode())

    async def serve() -> str:
        extra = f'[metrics]\naddress = "127.0.0.1:{port}"\n{_CONTROLLER}'
        services = (create_controller, create_publishers)
        with tempfile.TemporaryDirectory() as home:
            async with served_node(Path(home), extra, services=services):
                return await asyncio.to_thread(get)

    return list(text_string_to_metric_families(asyncio.run(serve())))


# --- tables ---------------------------------------------------------------------------------------


def _tables() -> Iterator[str]:
    yield (
        "Types are Arrow types. `read_state`, and `raftlog_state` in SQL, return the typed tables. "
        "The meanings are also comments of the Delta tables and of the views of a schema."
    )
    yield from ("", "## Stored tables")
    for stored in STORED_TABLES.values():
        yield from ("", f"### {stored.name}", "", f"{STORED_COMMENTS[stored.name]}.", "")
        yield from ("| column | type | meaning |", "| --- | --- | --- |")
        comments = stored_comments(stored)
        for field in stored.schema:
            text = str(field.type)
            kind = _cell(text if len(text) < 60 else text.split("<")[0])
            yield f"| `{field.name}` | {kind} | {_cell(comments[field.name])} |"
    yield from ("", "## Typed tables")
    for typed in TYPED_TABLES:
        yield from ("", f"### {typed.name}", "", f"{TABLE_COMMENTS[typed.name]}.", "")
        yield from ("| column | type | meaning |", "| --- | --- | --- |")
        types = {**typed.columns, CLUSTER_ID: pa.string(), **ORIGIN_COLUMNS}
        for name, comment in column_comments(typed).items():
            yield f"| `{name}` | {types[name]} | {_cell(comment)} |"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
