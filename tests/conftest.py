"""What every test relies on: no network, one thread, a cache of its own."""

import os

# Before torch, transformers or Ray are imported; workers inherit it.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", WANDB_MODE="offline", RAY_USAGE_STATS_ENABLED="0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest

hypothesis.settings.register_profile("omnirl", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("omnirl")


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory):
    """`cache_dir` of all tests: what one builds, the next finds. Never the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIRL_CACHE", str(folder))
        yield folder


@pytest.fixture
def tmp_cache(tmp_path, monkeypatch):
    """An empty `cache_dir`, for tests of what is built or left in it."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("OMNIRL_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def omnis(tmp_path_factory):
    """The miniature of each pattern and family, built once: see `tests.omni.build_all`."""
    from tests.omni import build_all

    return build_all(tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="session")
def qwen(omnis):
    """The miniature of the Qwen-VL family."""
    return omnis["qwen_vl"]


@pytest.fixture(scope="session")
def omni(omnis):
    """The attention-only miniature."""
    return omnis["*-*-"]
