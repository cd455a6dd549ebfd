"""Parameters of which ``make test`` runs some and ``make nightly`` all."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest


def nightly_except(usual: Container[object], everything: Iterable[object]) -> list[object]:
    """Return all of ``everything`` as parameters; those not in ``usual`` are marked nightly.

    A tuple has the values of several arguments.
    """
    return [
        one
        if one in usual
        else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.nightly)
        for one in everything
    ]
