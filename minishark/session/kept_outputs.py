"""Where a session keeps outputs of its queries for later ones, and how much of them."""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping, Sequence

from minishark.cluster.contract import Cluster
from minishark.cluster.outputs import FOLDER as SHARED_FOLDER
from minishark.errors import MinisharkError
from minishark.query.reuse import Reuse
from minishark.worker.protocol import FileSlice

FOLDER = "outputs"
_SHARE = 8
"""The outputs of a session take at most an eighth of the nodes' memory."""

_KNOWN_BYTES = 1 << 40
"""Of outputs of nodes, sessions know what they please: they keep none but small ones."""


def kept_outputs(cluster: Cluster, reuse: str, contents: MutableMapping[str, str]) -> Reuse | None:
    """The outputs that queries may take, by the option `reuse`; None for none.

    `contents` says what files of tables were made from.
    """
    if reuse == "off":
        return None
    shared = cluster.shared_outputs() if reuse == "cluster" else None
    if shared is not None:  # the nodes remove them
        return Reuse(
            folder=SHARED_FOLDER,
            quota_bytes=_KNOWN_BYTES,
            remove=lambda _: None,
            shared=shared,
            contents=contents,
        )

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
        contents=contents,
    )
