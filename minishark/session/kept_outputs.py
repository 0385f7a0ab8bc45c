"""Where a session keeps outputs of its queries for later ones, and how much of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minishark.cluster.contract import Cluster
from minishark.cluster.outputs import FOLDER as SHARED_FOLDER
from minishark.errors import MinisharkError
from minishark.query.call_segments import CallSegments
from minishark.query.output_folder import FolderOutputs, entries_in
from minishark.query.reuse import RANDOM, Reuse
from minishark.sources.filesystems import StoreAccess
from minishark.worker.protocol import FileSlice

FOLDER = "outputs"
_SHARE = 8
"""The outputs of a session take at most an eighth of the nodes' memory."""

_KNOWN_BYTES = 1 << 40
"""Of outputs of nodes, sessions know what they please: they keep none but small ones."""

_FOLDER_BYTES = 64 << 30


@dataclass(frozen=True, slots=True)
class Reuses:
    """What users say of reuse."""

    by: str = "off"  # who takes outputs: "off" for nobody, "session", "cluster"
    folder: str | Path | None = None  # where they stay when the cluster is gone; None for nowhere
    folder_bytes: int | None = None  # how much that may have; None for the default

    @property
    def outlive(self) -> bool:
        """Whether other sessions take outputs, too."""
        return self.by == "cluster" or self.folder is not None


NO_REUSE = Reuses()


def kept_outputs(
    cluster: Cluster,
    reuse: Reuses,
    contents: MutableMapping[str, str],
    *,
    access: Callable[[], StoreAccess],
    warn: Callable[[str], None],
    chance: Callable[[], str] = RANDOM,
) -> Reuse | None:
    """The outputs that queries may take; None for none.

    Args:
        cluster: where they are.
        reuse: what users say.
        contents: what files of tables were made from.
        access: how object stores are reached.
        warn: takes a sentence for the user.
        chance: gives random texts.

    Raises:
        DataError: the folder of outputs can't be read.
    """
    if reuse.by == "off":
        return None
    entries = None if reuse.folder is None else entries_in(reuse.folder, access)
    of_nodes = cluster.shared_outputs() if reuse.by == "cluster" else None
    if reuse.by == "cluster" and of_nodes is None and entries is None:
        warn(
            "This session's cluster ends with it, and so does what reuse='cluster' keeps: connect "
            "to a cluster that was started, or pass reuse_folder, so that other sessions find it."
        )
    quota = cluster.memory_limit_bytes // _SHARE
    if of_nodes is not None and entries is None:  # the nodes remove them
        return Reuse(
            folder=SHARED_FOLDER,
            quota_bytes=_KNOWN_BYTES,
            remove=lambda _: None,
            shared=of_nodes,
            contents=contents,
            chance=chance,
        )
    folder = cluster.folder(FOLDER)
    cluster.make_folder(folder)
    logs = folder if of_nodes is None else SHARED_FOLDER
    in_folder = None
    if entries is not None:
        in_folder = FolderOutputs(
            entries,
            store=cluster.store,
            folder=folder,
            limit_bytes=_FOLDER_BYTES if reuse.folder_bytes is None else reuse.folder_bytes,
            read_bytes=sys.maxsize if of_nodes is None else quota,  # else they go by the quota
            behind=of_nodes,
            warn=warn,
        )

    def remove(files: Sequence[tuple[str, str]]) -> None:
        # What stays behind is removed with the folder.
        with contextlib.suppress(MinisharkError, OSError):
            store = cluster.store()
            for file, node in files:
                if file.startswith(f"{folder}/"):  # else it is a node's
                    store.remove(FileSlice(file, (node,)))

    return Reuse(
        folder=logs,
        quota_bytes=quota if of_nodes is None else _KNOWN_BYTES,
        remove=remove,
        shared=in_folder,
        calls=None
        if in_folder is None
        else partial(
            CallSegments, outputs=in_folder, store=cluster.store, logs=logs, folder=folder
        ),
        contents=contents,
        chance=chance,
    )
