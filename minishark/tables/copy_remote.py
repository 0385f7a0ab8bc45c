"""COPY ... TO an object store.

Tasks upload their files below a staging prefix beside the target, whose name begins with a dot:
patterns do not match it. After the last one, the front end has the store copy them to their final
names. An error or interruption before or during that leaves the target as it was.

A store has no transactions over several files: whoever reads a folder while its files get their
names can find some of them only, and if the front end is killed just then, it stays so. A target
that is one file appears at once.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from minishark.errors import DataError
from minishark.sources.filesystems import (
    StoreAccess,
    StoredFile,
    copy_file,
    list_below,
    remove_files,
    write_file,
)
from minishark.tables.copy import MODES, Copy, Written, final_names
from minishark.worker.uploads import MARK

_AT_ONCE = 8


@dataclass(slots=True)
class RemoteStaging:
    """The staging prefix of one COPY."""

    copy: Copy
    access: StoreAccess
    uri: str = field(init=False)  # of the prefix
    _new: list[str] = field(default_factory=list)  # what may have got its final name
    _kept: dict[str, StoredFile] = field(default_factory=dict)  # copies of what was replaced

    def __post_init__(self) -> None:
        parent, _, name = self.copy.uri.rpartition("/")
        self.uri = f"{parent}/.{name}.minishark-{secrets.token_hex(8)}"

    def check(self) -> None:
        """Raise DataError for targets that DuckDB would refuse, too."""
        copy = self.copy
        if not copy.is_folder:
            return
        if list_below(copy.uri, self.access) and not any(map(copy.has, MODES)):
            raise DataError(
                f'Directory "{copy.uri}" is not empty! Add the option OVERWRITE, '
                "OVERWRITE_OR_IGNORE or APPEND."
            )

    def begin(self) -> None:
        write_file(b"", f"{self.uri}/{MARK}", self.access)

    def publish(self, written: Sequence[Written]) -> None:
        """Give all output of tasks its final names; if that fails, undo it."""
        filled = [item for item in written if item.rows] or list(written[:1])
        uploaded = {file.path: file for file in list_below(self.uri, self.access)}
        if not self.copy.is_folder:
            (source,) = [uploaded[f"{self.uri}/{filled[0].entry}"]]
            copy_file(source, self.copy.uri, self.access)
            return
        before = {file.path: file for file in list_below(self.copy.uri, self.access)}
        targets = {
            f"{self.copy.uri}/{name}": uploaded[f"{self.uri}/{source}"]
            for name, source in final_names(self.copy, self._entries(filled, uploaded)).items()
        }
        try:
            self._move(targets, before)
        except BaseException:
            self._undo()
            raise

    def _entries(
        self, filled: Sequence[Written], uploaded: dict[str, StoredFile]
    ) -> Iterator[tuple[str, list[str]]]:
        """The entries of tasks, and the files in each."""
        for item in filled:
            start = f"{self.uri}/{item.entry}/"
            yield item.entry, [path[len(start) :] for path in uploaded if path.startswith(start)]

    def _move(self, targets: dict[str, StoredFile], before: dict[str, StoredFile]) -> None:
        gone = set(before) - set(targets) if self.copy.has("overwrite") else set()
        replaced = [before[path] for path in before if path in gone or path in targets]
        kept = {file.path: f"{self.uri}/replaced/{i}" for i, file in enumerate(replaced)}
        _together(self._keep, [(file, kept[file.path]) for file in replaced])
        _together(self._put, [(file, target) for target, file in targets.items()])
        remove_files(sorted(gone), self.access)

    def _keep(self, file: StoredFile, place: str) -> None:
        """Copy a file that will be replaced, so that it can be restored."""
        copy_file(file, place, self.access)
        kept = StoredFile(place, file.bytes, "")
        self._kept[file.path] = kept

    def _put(self, source: StoredFile, target: str) -> None:
        self._new.append(target)  # first: it may be there although the answer was lost
        copy_file(source, target, self.access)

    def _undo(self) -> None:
        remove_files([path for path in self._new if path not in self._kept], self.access)
        _together(self._copied, [(file, path) for path, file in self._kept.items()])

    def _copied(self, file: StoredFile, target: str) -> None:
        copy_file(file, target, self.access)

    def remove(self) -> None:
        """Remove what is staged; the mark first, so that late tasks remove their own files."""
        remove_files([f"{self.uri}/{MARK}"], self.access)
        files = list_below(self.uri, self.access)
        remove_files([file.path for file in files], self.access)


def _together(
    call: Callable[[StoredFile, str], None], arguments: Sequence[tuple[StoredFile, str]]
) -> None:
    """Make calls, several at a time; the first error after all have ended."""
    with ThreadPoolExecutor(_AT_ONCE, "minishark-publish") as pool:
        for done in [pool.submit(call, *argument) for argument in arguments]:
            done.result()


@contextlib.contextmanager
def remote_staging(copy: Copy, access: StoreAccess) -> Iterator[RemoteStaging]:
    """A staging prefix beside the target, removed afterwards."""
    staging = RemoteStaging(copy, access)
    staging.check()
    try:
        staging.begin()
        yield staging
    except BaseException:
        with contextlib.suppress(DataError):  # the first error says more
            staging.remove()
        raise
    staging.remove()
