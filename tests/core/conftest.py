"""Says at the end of the run what the random histories were, so that a figure is never only a green dot."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for key, value in getattr(report, "user_properties", ()):
                if key == "histories":
                    terminalreporter.section("random histories")
                    terminalreporter.write_line(str(value))
