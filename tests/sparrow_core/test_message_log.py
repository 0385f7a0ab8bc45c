"""The log of messages: what machines take and send, for the owner of the file only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from machine_kit.addresses import Address
from machine_kit.local_driver import LocalDriver
from machine_kit.machine import Envelope, Tick
from sparrow_core.observe.message_log import VARIABLE, MessageLog
from sparrow_core.protocol.messages import GetNodes
from sparrow_core.runtime.transport.observe import observed


class _Asking:
    """Asks somebody at each tick, stops the driver at the first, and ticks again a second later."""

    inputs = Tick

    def __init__(self, driver: LocalDriver) -> None:
        self._driver = driver

    def on_message(self, msg: Tick, now: float) -> list[Envelope]:
        self._driver.stop()
        me = self._driver.address("asking")
        asked = Envelope(Address("there#s"), GetNodes(me))
        return [asked, Envelope(me, Tick(msg.generation + 1), 1.5)]


def test_what_is_taken_and_sent_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names a folder; a line has the receiver, the delay and the message."""
    folder = tmp_path / "messages"
    monkeypatch.setenv(VARIABLE, str(folder))
    driver = LocalDriver("here")
    driver.host("asking", _Asking(driver))
    driver.post(driver.address("asking"), Tick(7))
    with observed(driver, "node-0", None, metrics=False):
        driver.run()
    (file,) = folder.iterdir()
    assert re.fullmatch(r"node-0\.\d+\.log", file.name)
    assert 0o600 == file.stat().st_mode & 0o777
    lines = [line.partition(" ") for line in file.read_text().splitlines()]
    assert [
        "here#asking <- Tick(generation=7)",
        "here#asking -> there#s GetNodes(client='here#asking')",
        "here#asking -> here#asking after 1.5 s Tick(generation=8)",
    ] == [what for _, _, what in lines]
    assert all(re.fullmatch(r"\d+\.\d{6}", at_s) for at_s, _, _ in lines)


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable the driver has no tap."""
    monkeypatch.delenv(VARIABLE, raising=False)
    driver = LocalDriver("here")
    with observed(driver, "node-0", None, metrics=False):
        assert [] == driver.taps


def test_any_text_can_be_written(tmp_path: Path) -> None:
    """Whatever the locale: a log that fails would end the process."""
    code = r"""
import sys
from pathlib import Path
from sparrow_core.observe.message_log import MessageLog
from machine_kit.addresses import Address
from sparrow_core.protocol.messages import GetNodes
log = MessageLog(Path(sys.argv[1]))
log.taken(0.0, Address("a#b"), GetNodes(Address("\N{SNOWMAN} \udc80")))
log.close()
"""
    file = tmp_path / "some.log"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(file)], env=environment, check=True)
    assert file.read_text(encoding="utf-8").endswith("GetNodes(client='\N{SNOWMAN} \\udc80')\n")


def test_large_messages_are_cut_off(tmp_path: Path) -> None:
    """The length of what is cut off is told; the clock may be a simulator's."""
    file = tmp_path / "simulated.log"
    log = MessageLog(file, offset_s=0.0)
    log.taken(1.25, Address("a#b"), GetNodes(Address("x" * 5_000)))
    log.close()
    text = file.read_text()
    assert text.startswith("1.250000 a#b <- GetNodes(client='xxx")
    assert text.endswith("x... (5,019 characters)\n")
