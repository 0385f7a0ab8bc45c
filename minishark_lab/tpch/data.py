"""TPC-H data for experiments that run queries."""

from __future__ import annotations

from pathlib import Path

from minishark.cli.tpch.locations import default_data_folder, sample_folder
from minishark_lab.tpch.generate import default_parts, generate


def tpch_folder(scale: float, data: str) -> Path:
    """The folder of TPC-H's tables at a scale, 0 for the sample; generated in `data` if need be."""
    if not scale:
        return sample_folder()
    root = Path(data) if data else default_data_folder()
    parts = default_parts(scale)
    return generate(scale, root, parts=parts, on_progress=Silent().progress)


class Silent:
    """A `Reporter` that prints nothing."""

    def step(self, title: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...

    def detail(self, text: str) -> None: ...

    def warning(self, text: str) -> None: ...
