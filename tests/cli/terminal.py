"""A terminal that a test types on and looks at: tmux."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WAIT_S = 30.0
_POLL_S = 0.05


class Terminal:
    """A program in a window of tmux."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"
        self.status = folder / "status"

    def tmux(self, *arguments: str) -> str:
        """Run a command of tmux."""
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout

    def type(self, text: str) -> None:
        """Type a line, and Enter."""
        # tmux takes a semicolon at the end of an argument for its own.
        text = f"{text[:-1]}\\;" if text.endswith(";") else text
        self.tmux("send-keys", "-l", text)
        self.press("Enter")

    def press(self, key: str) -> None:
        """Press a key, in tmux's way of writing."""
        self.tmux("send-keys", key)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        """What stands on the screen."""
        lines = self.tmux("capture-pane", "-p").splitlines()
        return "\n".join(line.rstrip() for line in lines)

    def wait_for(self, text: str) -> str:
        """Wait until a text stands on the screen; the screen."""
        deadline = time.monotonic() + _WAIT_S
        while text not in (screen := self.screen()):
            assert time.monotonic() < deadline, f"{text!r} is not on the screen:\n{screen}"
            time.sleep(_POLL_S)
        return screen

    def exit_status(self) -> str:
        """Wait until the program has ended; its exit status, which tmux at times never tells."""
        deadline = time.monotonic() + _WAIT_S
        while not (self.status.exists() and (status := self.status.read_text().strip())):
            assert time.monotonic() < deadline, f"it runs on:\n{self.screen()}"
            time.sleep(_POLL_S)
        return status


@contextmanager
def terminal(
    folder: Path, *arguments: str, width: int = 80, height: int = 40
) -> Iterator[Terminal]:
    """The minishark command in a terminal; `folder` is its home and has tmux's socket."""
    opened = Terminal(folder)
    environment = {
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
    }
    settings = [f"{name}={value}" for name, value in environment.items()]
    command = shlex.join(["env", *settings, sys.executable, "-m", "minishark.cli", *arguments])
    command = f"{command}; echo $? > {shlex.quote(str(opened.status))}"
    size = ("-x", "80", "-y", "40")
    opened.tmux("-u", "new-session", "-d", *size, command, ";", "set", "remain-on-exit", "on")
    try:
        yield opened
    finally:
        opened.tmux("kill-server")
