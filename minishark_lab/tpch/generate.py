"""Generates TPC-H data with tpchgen-cli, atomically, and keeps it for later runs.

The generator writes into a hidden folder beside the final one, which is renamed when all eight
tables are complete. So `scale-<s>` is complete whenever it exists, even after a crash, and
concurrent runs do not disturb each other.
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
from pathlib import Path

import psutil

from minishark.cli.tpch.locations import scale_folder, scale_text
from minishark.cli.tpch.tables import TABLES
from minishark.errors import DataError, MinisharkError, ResourceError

# Size of scale 1 as Snappy-compressed Parquet: for progress, and to notice early that the disk is
# too small.
BYTES_PER_SCALE = 363_000_000
_POLL_S = 0.1

OnProgress = Callable[[int, int], None]


class GeneratorMissingError(MinisharkError):
    """The generator is not installed."""


class GeneratorFailedError(MinisharkError):
    """The generator failed; the message is its own."""


def default_parts(scale: float) -> int:
    """Files per table: at least 4, and more for large scales, so that each stays small."""
    return min(64, max(4, round(2 * scale)))


def generate(scale: float, root: Path, *, parts: int, on_progress: OnProgress) -> Path:
    """Generate one scale's data, unless it exists; the folder of its tables' folders."""
    # `on_progress` is called with the bytes written so far and the bytes expected.
    target = scale_folder(root, scale)
    if target.is_dir():
        _check_complete(target)
        return target
    generator = _find_generator()
    with _unfinished_folder(root, target.name) as unfinished:
        expected = round(scale * BYTES_PER_SCALE)
        free = shutil.disk_usage(root).free
        if free < expected:
            raise ResourceError(
                f"The data needs about {expected / 1e6:,.0f} MB, and {root} has only "
                f"{free / 1e6:,.0f} MB free: choose a smaller scale, or another folder with --data."
            )
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
    # Look beside the interpreter first: its virtual environment may not be activated.
    beside = Path(sys.executable).parent / "tpchgen-cli"
    generator = str(beside) if os.access(beside, os.X_OK) else shutil.which("tpchgen-cli")
    if generator is None:
        raise GeneratorMissingError(
            "tpchgen-cli, the generator of TPC-H data, is not installed: "
            "pip install 'minishark[tpch]'"
        )
    return generator


@contextlib.contextmanager
def _unfinished_folder(root: Path, name: str) -> Iterator[Path]:
    """A hidden folder in `root`, removed at the end unless it was renamed."""
    prefix = f".{name}.{platform.node()}."
    unfinished = root / f"{prefix}{os.getpid()}"
    try:
        try:
            root.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(root, prefix)
            unfinished.mkdir()
        except OSError as error:
            raise _folder_error(root, error) from error
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _remove_abandoned(root: Path, prefix: str) -> None:
    """Remove the unfinished folders of killed processes of this host."""
    for folder in root.glob(f"{prefix}*"):
        process = folder.name.removeprefix(prefix)
        if process == str(os.getpid()) or not (
            process.isdecimal() and psutil.pid_exists(int(process))
        ):
            shutil.rmtree(folder, ignore_errors=True)


def _run_generator(command: list[str], on_poll: Callable[[], None]) -> None:
    # Its messages go to a file: a pipe that nobody reads would block it when full.
    with tempfile.TemporaryFile() as messages:
        environment = os.environ | {"RUST_BACKTRACE": "0"}
        with _signals_later() as received:
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=messages,
                    env=environment,
                )  # fmt: skip
            except OSError as error:
                reason = f"{command[0]} does not start: {error.strerror}."
                raise GeneratorFailedError(reason) from error
            try:
                _wait(child, on_poll, received)
            finally:
                # Also after Ctrl-C: the child must not outlive us and go on writing.
                child.kill()
                child.wait()
        if child.returncode != 0:
            messages.seek(0)
            text = messages.read().decode(errors="replace")
            raise _generator_error(text, child.returncode)


@contextlib.contextmanager
def _signals_later() -> Iterator[list[int]]:
    """Defer signals to the end of the block; the list has those received so far."""
    # An exception within Popen's constructor would leak the child; one within its `wait` could
    # leave its lock held, and the next `wait` would deadlock.
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
    """Wait until a child ends or a signal is received."""
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
            # The generator renames finished files, perhaps between walk and stat.
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def _check_complete(folder: Path) -> None:
    for table in TABLES:
        if not any((folder / table).glob("*.parquet")):
            raise DataError(
                f"{folder} lacks the table {table}: delete the folder to generate it again."
            )


def _publish(unfinished: Path, target: Path) -> None:
    try:
        unfinished.rename(target)
    except OSError as error:
        # A concurrent run was faster: its data is the same, as the generator is deterministic.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise _folder_error(target.parent, error) from error


def _folder_error(folder: Path, error: OSError) -> MinisharkError:
    if error.errno == errno.ENOSPC:
        return ResourceError(f"The disk that holds {folder} is full.")
    return DataError(
        f"Can't write to the data folder {folder} ({error.strerror}): name another with --data."
    )
