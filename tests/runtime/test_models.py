import pytest

from omnirl.config.schema import Config, ModelConfig
from omnirl.errors import ModelError
from omnirl.models import read_spec
from omnirl.runtime.models import ensure_model
from tests.omni import tiny


def config(cache, **model):
    return Config(recipe_name="test", suite="smoke", description="", cache_dir=str(cache), model=ModelConfig(**model))


def test_a_miniature_is_built_once_for_its_settings(tmp_path):
    first = ensure_model(config(tmp_path, tiny=tiny()))
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert ensure_model(config(tmp_path, tiny=tiny())) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    other = ensure_model(config(tmp_path, tiny=tiny(seed=1)))
    assert other != first
    assert sorted(tmp_path.glob("models/*")) == sorted([first, other])
    assert read_spec(other).path == other


def test_a_checkpoint_by_path(omni, tmp_path):
    assert ensure_model(config(tmp_path / "cache", path=str(omni.path))) == omni.path
    assert not (tmp_path / "cache").exists()


def test_a_path_that_is_not_a_directory(tmp_path):
    with pytest.raises(ModelError, match=r"model\.path: '.*nothing' is not a directory; give a checkpoint directory"):
        ensure_model(config(tmp_path, path=str(tmp_path / "nothing")))
