"""The compiled core's build; everything else is in ``pyproject.toml``.

The core is built where cargo is installed, and is optional: if it cannot be built, the same
functions run in Python. With ``RAFTLOG_NATIVE=0``, or without cargo, nothing is compiled and a
wheel is one for every platform, ``py3-none-any``.
"""

import os
import shutil
from pathlib import Path

from setuptools import setup

MANIFEST = "connector/native/Cargo.toml"


def is_wanted() -> bool:
    return (
        os.environ.get("RAFTLOG_NATIVE") != "0"
        and shutil.which("cargo") is not None
        and Path(__file__).with_name("connector").joinpath("native/Cargo.toml").exists()
    )


if is_wanted():
    from setuptools_rust import Binding, RustExtension

    setup(
        rust_extensions=[
            RustExtension(
                "raftlog._native",
                path=MANIFEST,
                args=["--locked"],
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
