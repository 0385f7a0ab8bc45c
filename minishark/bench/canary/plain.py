"""The applications in plain NumPy, one process and one thread: what the others must equal."""

from __future__ import annotations

from minishark.bench.canary.cases import sequential
from minishark.bench.canary.peer import serve

if __name__ == "__main__":
    serve(sequential)
