"""The tests that need a cluster run only when asked for: plain `pytest` works on any laptop, in seconds."""

import os
from pathlib import Path

import pytest

_E2E = Path(__file__).parent / "e2e"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--e2e",
        action="store_true",
        default=os.environ.get("ACCELSHARE_E2E") == "1",
        help="run tests/e2e too, on a real Kubernetes started on this machine (needs Linux and root)",
    )


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--e2e"):
        return "e2e: on"
    return "e2e: tests/e2e is left out; --e2e or ACCELSHARE_E2E=1 runs it on a real Kubernetes (needs root)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not even imported: what only e2e tests need may be missing."""
    left_out = collection_path.is_relative_to(_E2E) and not config.getoption("--e2e")
    return True if left_out else None
