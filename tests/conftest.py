"""What all tests share: two event loops, no network, and which tests an install can run."""

import os
from importlib.util import find_spec

import pytest
from hypothesis import settings

from tests.offline import forbid_network

# Before anything imports a model library, so that a wrong path fails instead of asking a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
# Toy models: a second thread costs more than it saves, most of all on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
forbid_network()

settings.register_profile("agentdiff", deadline=None)  # a busy machine is not a failure
settings.load_profile("agentdiff")

HAS_LOCAL = all(find_spec(name) for name in ("numpy", "torch", "transformers"))

# A base install collects what it can import: these rooms need the `local` extra.
collect_ignore = [] if HAS_LOCAL else ["constraint", "embedded", "engine", "goldens"]
collect_ignore_glob = [] if HAS_LOCAL else ["backends/test_local*"]
if not find_spec("opentelemetry.sdk"):  # these read spans back, which the `otel` extra can
    collect_ignore += ["telemetry", "agent/test_traces.py", "cli/test_trace.py"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests marked `local` where the extra is not installed."""
    if HAS_LOCAL:
        return
    config.hook.pytest_deselected(items=[item for item in items if needs_local(item)])
    items[:] = [item for item in items if not needs_local(item)]


def needs_local(item: pytest.Item) -> bool:
    return item.get_closest_marker("local") is not None


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Each async test runs on both event loops."""
    return request.param
