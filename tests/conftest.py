"""Strict tests: deterministic property tests, 64-bit automatic differentiation."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

settings.register_profile(
    "flatmin",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("flatmin")


@pytest.fixture(scope="session", autouse=True)
def _compile_ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """With a core to spare, and all tests to run: kernels for later while the first tests run."""
    modules = {Path(item.path).stem for item in request.session.items}
    wanted = {"test_cli_study", "test_descent", "test_flow_kernel", "test_samples_kernel"}
    if not wanted <= modules or (os.cpu_count() or 1) == 1:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, HERE / "compile_ahead.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield
    process.kill()
    process.wait()
