"""Calls of the table functions, as Spark's workers make them."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.types import StringType
from pyspark.sql.udtf import AnalyzeArgument


def argument(value: object, *, is_constant: bool = True) -> AnalyzeArgument:
    """Return an argument of a call; the value of one that is no constant is None."""
    return AnalyzeArgument(
        dataType=StringType(), value=value, isTable=False, isConstantExpression=is_constant
    )


def called(function: type[Any], *values: object, **named: object) -> tuple[list[str], list[Any]]:
    """Return the columns and rows of a call, whose analysis is sent to a task."""
    given = {name: argument(value) for name, value in named.items()}
    analyzed = function.analyze(*map(argument, values), **given)
    task = function(pickle.loads(pickle.dumps(analyzed)))
    return analyzed.schema.names, list(task.eval(*values, **named))
