"""Bugs of the timeline collections: snapshots, reverts, deletion of snapshots."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

REGISTRY: Final = "state/raftlog_state/timeline/registry.py"
CASES: Final = "tests/state/timeline/test_timeline.py"
HISTORIES: Final = "tests/state/timeline/test_random_histories.py"

TIMELINE_PLANTS: Final = (
    Plant(
        bug="timeline: elements that are loaded after a snapshot are in it",
        path=REGISTRY,
        old="        if self._registry.newest is None:\n            self.current.update",
        new="        if True:\n            self.current.update",
        tests=(HISTORIES,),
    ),
    Plant(
        bug="timeline: a second write replaces the value that a snapshot has",
        path=REGISTRY,
        old="        if key not in delta.values:\n",
        new="        if True:\n",
        tests=(HISTORIES,),
    ),
    Plant(
        bug="timeline: a revert restores the values of the newest snapshot",
        path=REGISTRY,
        old="            if reverted is target:\n                break\n",
        new="            break\n",
        tests=(CASES,),
    ),
    Plant(
        bug="timeline: after a revert, writes go to the delta that the revert emptied",
        path=REGISTRY,
        old="        _restore(self.current, delta)\n        self._newest = self._delta = None\n",
        new="        _restore(self.current, delta)\n",
        tests=(CASES,),
    ),
    Plant(
        bug="timeline: what a deleted snapshot stores is lost for the one before",
        path=REGISTRY,
        old="                if older is not delta:\n",
        new="                if False:\n",
        tests=(HISTORIES,),
    ),
    Plant(
        bug="timeline: a deleted snapshot overwrites older values",
        path=REGISTRY,
        old="                        older.values.setdefault(key, value)\n",
        new="                        older.values[key] = value\n",
        tests=(HISTORIES,),
    ),
    Plant(
        bug="timeline: the size at a snapshot is the current one",
        path=REGISTRY,
        old="            return delta.size\n",
        new="            break\n",
        tests=(HISTORIES,),
    ),
    Plant(
        bug="timeline: views of deleted snapshots answer",
        path=REGISTRY,
        old="        if not snapshot.is_live:\n",
        new="        if False:\n",
        tests=(CASES,),
    ),
    Plant(
        bug="timeline: an iteration of a snapshot lacks elements removed since",
        path=REGISTRY,
        old="        for key in removed:\n",
        new="        for key in ():\n",
        tests=(HISTORIES,),
    ),
    Plant(
        bug="timeline: a collection keeps the deleted snapshots since its last write",
        path=REGISTRY,
        old="            table.forget(snapshot)\n",
        new="            pass\n",
        tests=(CASES,),
    ),
    Plant(
        bug="timeline: a deleted snapshot refers to those around it",
        path=REGISTRY,
        old="        snapshot.previous = snapshot.next = None  #",
        new="        #",
        tests=(CASES,),
    ),
)
