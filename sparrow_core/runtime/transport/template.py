"""Entry point of templates, run by `python -m`: see `spawning.Template`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys

from sparrow_core.runtime.transport import process
from sparrow_core.runtime.transport.spawning import run_template, show_as


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    modules = [name for name in sys.argv[1].strip().split(",") if name]
    show_as((sys.executable, "-m", __spec__.name, *modules))
    for name in modules:
        with contextlib.suppress(Exception):  # what needs it says more
            importlib.import_module(name)
    gc.freeze()  # else each collection in a copy would copy all pages
    run_template(process.main)
    os._exit(0)


if __name__ == "__main__":
    main()
