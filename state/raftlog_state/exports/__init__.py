"""Cluster state, or the differences between two states, in other tools' formats.

``commands`` is a shell script of Kafka's own tools, ``strimzi`` is resources for Kubernetes, and
``terraform`` is resources of the provider Mongey/kafka. All of them are written from the changes of
``raftlog_state.desired_state.plan``; a whole state is the changes from the empty one. They contain
what was set, never defaults. ``left_out`` lists what a format cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from raftlog_state.image import MetadataImage

from .commands import export_commands
from .exported import Exported
from .strimzi import export_strimzi
from .terraform import export_terraform

CLUSTER_DEFAULT: Final = "my-cluster"
FORMS: Final = ("commands", "strimzi", "terraform")

__all__ = ["CLUSTER_DEFAULT", "FORMS", "Exported", "export"]


def export(
    before: MetadataImage, after: MetadataImage, form: str, *, cluster: str = CLUSTER_DEFAULT
) -> Exported:
    """Return what changes one state to another, in one of ``FORMS``.

    Args:
        before: the empty image, for the whole state ``after``.
        cluster: name of the ``Kafka`` resource to which Strimzi's resources belong.
    """
    forms: Mapping[str, Callable[[MetadataImage, MetadataImage], Exported]] = {
        "commands": export_commands,
        "strimzi": partial(export_strimzi, cluster=cluster),
        "terraform": export_terraform,
    }
    return forms[form](before, after)
