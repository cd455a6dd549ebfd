"""Calls of the compiled core in processes whose memory ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HOME = Path(__file__).parents[2]

_SCRIPT = """
import json, os, resource, sys
from collections import Counter
from pathlib import Path
{functions}

def room_left(byte_count):
    mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + byte_count, resource.RLIM_INFINITY))

def outcome(arguments, room):
    child = os.fork()
    if not child:
        room_left(room)
        try:
            found = call(*arguments)
        except MemoryError:
            os._exit(2)
        os._exit(0 if found else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

names = {{0: "done", 1: "given back", 2: "MemoryError"}}
print(json.dumps([
    Counter(names.get(code, code) for code in (outcome(arguments, k << 18) for k in range(64)))
    for arguments in (prepared(Path(name).read_bytes()) for name in sys.argv[1:])
]))
"""


def outcomes(functions: str, files: Sequence[Path]) -> list[dict[str, int]]:
    """Return the outcomes of a call for each file, with memory from none to 16 MiB.

    ``functions`` is the source of ``prepared(data)``, which returns the arguments from the bytes of
    a file, and of ``call(*arguments)``, whether nothing was given back. Each call is in a process
    of its own. The buffers are files, so that no memory is free that was needed to build them. An
    outcome is ``done``, ``given back``, ``MemoryError``, or the code of a process that ended.
    """
    command = [sys.executable, "-c", _SCRIPT.format(functions=functions), *map(str, files)]
    one_heap = os.environ | {"MALLOC_ARENA_MAX": "1"}  # each thread has reserved another 64 MiB
    done = subprocess.run(
        command, cwd=HOME, env=one_heap, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    counted: list[dict[str, int]] = json.loads(done.stdout)
    return counted
