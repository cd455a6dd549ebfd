"""Cluster state, or what differs between two states, in the forms of other tools.

``commands`` is a shell script of Kafka's own tools, ``strimzi`` resources for Kubernetes,
``terraform`` resources of the provider Mongey/kafka. All of them are written from the changes of
``raftlog_state.desired_state.plan``: a whole state is the changes from the empty one. They have
what was set, never defaults. What a form cannot express is in ``left_out``.
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
    """Return what leads from one state to another in one of ``FORMS``.

    Args:
        before: the empty image, for the whole state ``after``.
        cluster: name of the resource ``Kafka`` that resources of Strimzi belong to.
    """
    forms: Mapping[str, Callable[[MetadataImage, MetadataImage], Exported]] = {
        "commands": export_commands,
        "strimzi": partial(export_strimzi, cluster=cluster),
        "terraform": export_terraform,
    }
    return forms[form](before, after)
