"""Rewrite source distributions so that those with equal contents have equal bytes.

    reproducible.py SECONDS FILE...

The members of each archive are sorted, and have the time SECONDS since 1970 and no owner.
setuptools writes the time of the build into the files that it generates.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
from pathlib import Path


def rewrite(path: Path, time_s: int) -> None:
    packed = io.BytesIO()
    with tarfile.open(path) as source, tarfile.open(fileobj=packed, mode="w") as target:
        for member in sorted(source.getmembers(), key=lambda one: one.name):
            member.mtime = time_s
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers.clear()
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        rewrite(Path(name), int(sys.argv[1]))
