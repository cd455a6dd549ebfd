"""Replace the output in all transcripts, or in the given ones, by the present output.

``python -m tests.scenarios.rewrite [FILE ...]``. Review the diff before committing it.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from .transcripts import rewritten, transcripts


def main() -> None:
    failed = False
    for path in [Path(name) for name in sys.argv[1:]] or transcripts():
        text = path.read_text()
        try:
            new = rewritten(text)
        except Exception:  # noqa: BLE001 (the other files are rewritten)
            failed = True
            sys.stdout.write(f"{path} fails:\n{traceback.format_exc(limit=-2)}\n")
            continue
        if new != text:
            path.write_text(new)
            sys.stdout.write(f"{path}\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
