"""The compiled core's build; everything else is in ``pyproject.toml``.

The core is built where cargo is installed, and is optional: if it cannot be built, the same
functions run in Python. With ``RAFTLOG_NATIVE=0``, or without cargo, nothing is compiled and a
wheel is one for every platform, ``py3-none-any``. A core has no path of the machine that built it:
two builds of the same sources by the same compiler are equal.
"""

import json
import os
import shutil
from pathlib import Path

from setuptools import setup

HOME = Path(__file__).parent.resolve()
MANIFEST = "connector/native/Cargo.toml"


def is_wanted() -> bool:
    return (
        os.environ.get("RAFTLOG_NATIVE") != "0"
        and shutil.which("cargo") is not None
        and (HOME / MANIFEST).exists()
    )


def cargo_arguments() -> list[str]:
    """Return arguments that build the locked crates, and replace paths of this machine."""
    crates = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo").resolve()
    replaced = ((str(crates), "/cargo"), (str(HOME), "/raftlog"))
    flags = [f"--remap-path-prefix={path}={name}" for path, name in replaced]
    return ["--locked", "--config", f"build.rustflags={json.dumps(flags)}"]


if is_wanted():
    from setuptools_rust import Binding, RustExtension

    setup(
        rust_extensions=[
            RustExtension(
                "raftlog._native",
                path=MANIFEST,
                args=cargo_arguments(),
                binding=Binding.PyO3,
                debug=False,  # also where it is installed for development
                optional=True,
                py_limited_api=True,
            )
        ],
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
        zip_safe=False,
    )
else:
    setup()
