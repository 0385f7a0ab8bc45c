"""Makes TPC-H data with tpchgen-cli, all or nothing, and keeps it for the next run.

The generator writes into a hidden folder beside the final one, which is renamed when all eight
tables are there. So `scale-<s>` is complete whenever it exists, however a run ended, and two
runs at once do not disturb each other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import psutil

from minishark.errors import DataError, MinisharkError, ResourceError
from minishark.tpch.schema import TABLES

# What a scale of 1 takes as Snappy-compressed Parquet: for progress, and to see early that the
# disk is too small.
BYTES_PER_SCALE = 363_000_000
_POLL_S = 0.1

OnProgress = Callable[[int, int], None]


class GeneratorMissingError(MinisharkError):
    """The generator is not installed."""


class GeneratorFailedError(MinisharkError):
    """The generator ended with an error; the message is its own."""


def scale_folder(root: Path, scale: float) -> Path:
    """The folder of one scale's data; it exists only when it is complete."""
    return root / f"scale-{scale_text(scale)}"


def scale_text(scale: float) -> str:
    """A scale as people write it: 1, 0.1, 100."""
    return f"{Decimal(repr(scale)).normalize():f}"


def default_parts(scale: float) -> int:
    """How many files a table is made in: at least 4, more where they would become large."""
    return min(64, max(4, round(2 * scale)))


def generate(scale: float, root: Path, *, parts: int, on_progress: OnProgress) -> Path:
    """Makes one scale's data, unless it is there.

    Args:
        scale: TPC-H's scale factor; 1 is about 1 GB as text.
        root: The folder that holds one `scale-<s>` folder a scale; made if it is missing.
        parts: How many files a table is split into.
        on_progress: Called with the bytes written so far and the bytes expected.

    Returns:
        The folder that holds one folder of Parquet files a table.

    Raises:
        GeneratorMissingError: tpchgen-cli is not installed.
        GeneratorFailedError: It ended with an error.
        DataError: The folder can't be written to, or lacks a table.
        ResourceError: The disk is full, or too small.
    """
    target = scale_folder(root, scale)
    if target.is_dir():
        _check_complete(target)
        return target
    generator = _find_generator()
    with _unfinished_folder(root, target.name) as unfinished:
        expected = round(scale * BYTES_PER_SCALE)
        _check_free_space(root, expected)
        _run_generator(
            [generator, "parquet", "--quiet", "--scale-factor", scale_text(scale),
             "--parts", str(parts), "--output-dir", str(unfinished)],
            lambda: on_progress(min(_written_bytes(unfinished), expected), expected),
        )  # fmt: skip
        _check_complete(unfinished)
        _publish(unfinished, target)
        on_progress(expected, expected)
    return target


def _find_generator() -> str:
    # Beside the interpreter comes first: a virtual environment need not be activated.
    beside = Path(sys.executable).parent / "tpchgen-cli"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("tpchgen-cli")
    if found is None:
        raise GeneratorMissingError(
            "tpchgen-cli, which makes TPC-H data, is not installed: pip install 'minishark[tpch]'"
        )
    return found


@contextlib.contextmanager
def _unfinished_folder(root: Path, name: str) -> Iterator[Path]:
    """A hidden folder in `root` that is gone at the end, unless it was renamed."""
    prefix = f".{name}.{platform.node()}."
    unfinished = root / f"{prefix}{os.getpid()}"
    try:
        _make_folder(root, unfinished, prefix)
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _make_folder(root: Path, folder: Path, prefix: str) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(root, prefix)
        folder.mkdir()
    except OSError as error:
        raise _folder_error(root, error) from error


def _remove_abandoned(root: Path, prefix: str) -> None:
    """Removes what runs of this host that were killed have left."""
    for folder in root.glob(f"{prefix}*"):
        process = folder.name.removeprefix(prefix)
        if process == str(os.getpid()) or not (
            process.isdecimal() and psutil.pid_exists(int(process))
        ):
            shutil.rmtree(folder, ignore_errors=True)


def _run_generator(command: list[str], on_poll: Callable[[], None]) -> None:
    # Its messages go to a file: nobody empties a pipe while we wait.
    with tempfile.TemporaryFile() as messages:
        environment = os.environ | {"RUST_BACKTRACE": "0"}
        with _signals_later() as received:
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=messages,
                    env=environment,
                )
            except OSError as error:
                reason = f"{command[0]} does not start: {error.strerror}."
                raise GeneratorFailedError(reason) from error
            try:
                _wait(child, on_poll, received)
            finally:
                # After Ctrl-C, too: the child must not outlive us, nor write on.
                child.kill()
                child.wait()
        if child.returncode != 0:
            messages.seek(0)
            text = messages.read().decode(errors="replace")
            raise _generator_error(text, child.returncode)


@contextlib.contextmanager
def _signals_later() -> Iterator[list[int]]:
    """Signals wait until the end, and are in the list until then.

    One within Popen would leave a child that nobody knows, one within its `wait` could leave a
    lock taken for which the next `wait` waits for ever.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for waiting in received:
            signal.raise_signal(waiting)


def _wait(child: subprocess.Popen[bytes], on_poll: Callable[[], None], received: list[int]) -> None:
    """Wait for the end of a child, or for a signal."""
    while not received:
        try:
            child.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            on_poll()
        else:
            return


def _generator_error(text: str, status: int) -> MinisharkError:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")]
    message = (errors or lines or [f"exit status {status}"])[-1]
    if os.strerror(errno.ENOSPC) in text:
        return ResourceError(f"The disk is full: tpchgen-cli says {message!r}.")
    return GeneratorFailedError(f"tpchgen-cli failed: {message}")


def _written_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            # A file is renamed when it is finished, perhaps between the two calls.
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def _check_free_space(root: Path, expected: int) -> None:
    free = shutil.disk_usage(root).free
    if free < expected:
        raise ResourceError(
            f"The data takes about {_megabytes(expected)} MB and {root} has only "
            f"{_megabytes(free)} MB free: choose a smaller scale, or another folder with --data."
        )


def _check_complete(folder: Path) -> None:
    for table in TABLES:
        if not any((folder / table.name).glob("*.parquet")):
            raise DataError(
                f"{folder} lacks the table {table.name}: delete the folder, and it is made again."
            )


def _publish(unfinished: Path, target: Path) -> None:
    try:
        unfinished.rename(target)
    except OSError as error:
        # Another run was quicker: its data is the same, for the generator is deterministic.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise _folder_error(target.parent, error) from error


def _folder_error(folder: Path, error: OSError) -> MinisharkError:
    if error.errno == errno.ENOSPC:
        return ResourceError(f"The disk that holds {folder} is full.")
    return DataError(
        f"Can't write to the data folder {folder} ({error.strerror}): name another with --data."
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f}"
