"""A pytest plugin: a run passes only if every collected test has finished."""

from __future__ import annotations

from typing import Any

import pytest


class EveryTestEnds:
    """Ends the run if a worker crashes, and makes it fail if fewer tests ran than were collected."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        self.missing = 0

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ended.add(report.nodeid)
        if report.when == "???":  # xdist's report of the test whose worker crashed
            pytest.exit(str(report.longrepr), returncode=1)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == 0 and not session.config.option.collectonly:
            self.missing = session.testscollected - len(self.ended)
        if self.missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.missing:
            terminalreporter.section("incomplete run", red=True)
            collected = terminalreporter._session.testscollected
            terminalreporter.line(f"{self.missing} of {collected} collected tests did not run", red=True)


def pytest_configure(config: pytest.Config) -> None:
    # xdist's workers do not register the plugin, because each of them only knows its own share of the tests.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(EveryTestEnds())
