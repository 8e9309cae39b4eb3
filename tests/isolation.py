"""Run a test in a forked child, so that a crash of compiled code is one failed test.

Reports travel by pytest's own serialisation (as between the workers of pytest-xdist).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

import pytest
from _pytest.runner import runtestprotocol

_OUTPUT_LIMIT = 8000


def run_forked(item: pytest.Item) -> list[pytest.TestReport]:
    """Run all phases of a test in a child process and return its reports."""
    with tempfile.TemporaryDirectory(prefix="fa_triton_test_") as folder:
        reports_file = Path(folder) / "reports"
        output_file = Path(folder) / "output"
        output_file.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _child(item, reports_file, output_file)
        try:
            _, status = os.waitpid(pid, 0)
        except BaseException as reason:
            _end(pid)
            if isinstance(reason, pytest.fail.Exception):
                # pytest-timeout fails the test from a signal handler in this process
                return [_failure(item, f"{reason}\n{_tail(output_file)}")]
            raise
        if status == 0 and reports_file.exists():
            restore = item.config.hook.pytest_report_from_serializable
            data = pickle.loads(reports_file.read_bytes())
            return [restore(config=item.config, data=entry) for entry in data]
        return [_failure(item, f"{_how_it_ended(status)}\n{_tail(output_file)}")]


def _child(item: pytest.Item, reports_file: Path, output_file: Path) -> NoReturn:
    """Run the test and leave the process without any of the parent's clean-up."""
    code = 1
    try:
        capture = item.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)
        output = output_file.open("w")
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        faulthandler.enable(file=output)
        if capture is not None:
            capture.resume_global_capture()
        reports = runtestprotocol(item, log=False)
        keep = item.config.hook.pytest_report_to_serializable
        data = [keep(config=item.config, report=report) for report in reports]
        reports_file.write_bytes(pickle.dumps(data))
        code = 0
    except BaseException:
        with output_file.open("a") as end:
            traceback.print_exc(file=end)
    finally:
        os._exit(code)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _tail(output_file: Path) -> str:
    return output_file.read_text(errors="replace")[-_OUTPUT_LIMIT:]


def _how_it_ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
    return f"the test process ended {how}"


def _failure(item: pytest.Item, message: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=message,
        when="call",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Take over tests marked ``forked``."""
    if item.get_closest_marker("forked") is None:
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in run_forked(item):
        hook.pytest_runtest_logreport(report=report)
    item.session._setupstate.teardown_exact(nextitem)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
