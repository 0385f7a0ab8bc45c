"""Which modules are the user's own."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from minishark.query.digests import digest
from minishark.worker.user_modules import UserModules

OTHERS = ("machine_kit", "canary_core", "json", "numpy")


def test_the_users_modules_are_told_from_others_whatever_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that begin like a package of ours are imported again, and are told by their source."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "minishark_report.py"
    before, digests = dict(sys.modules), []
    for rate in (2, 30):
        path.write_text(f"RATE = {rate}\n")
        module = importlib.import_module("minishark_report")
        modules = UserModules()
        modules.note()
        assert not modules.drop_changed()
        digests.append(digest(lambda x, module=module: x * module.RATE))
        os.utime(path, (rate, rate))
        others = {name: importlib.import_module(name) for name in OTHERS}
        assert modules.drop_changed()
        assert "minishark_report" not in sys.modules
        assert others == {name: sys.modules[name] for name in OTHERS}
        sys.modules.update(before)  # tests' modules are the user's, too
    assert digests[0] != digests[1]
