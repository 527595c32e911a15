import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "real_server: needs a server that runs, named by AGENTDIFF_REAL_SERVER"
    )
