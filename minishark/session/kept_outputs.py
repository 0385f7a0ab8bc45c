"""Where a session keeps outputs of its queries for later ones, and how much of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from minishark.cluster.backend import Cluster
from minishark.errors import MinisharkError
from minishark.query.reuse import Reuse
from minishark.worker.protocol import FileSlice

FOLDER = "outputs"
_SHARE = 8
"""The outputs of a session take at most an eighth of the nodes' memory."""


def kept_outputs(cluster: Cluster, reuse: str) -> Reuse | None:
    """The outputs that queries may take, by the option `reuse`; None for none."""
    if reuse == "off":
        return None

    def remove(files: Sequence[tuple[str, str]]) -> None:
        # What stays behind is removed with the folder.
        with contextlib.suppress(MinisharkError, OSError):
            store = cluster.store()
            for file, node in files:
                store.remove(FileSlice(file, (node,)))

    folder = cluster.folder(FOLDER)
    cluster.make_folder(folder)
    return Reuse(
        folder=folder,
        quota_bytes=cluster.memory_limit_bytes // _SHARE,
        remove=remove,
    )
