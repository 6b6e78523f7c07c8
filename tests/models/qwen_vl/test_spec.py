import json
import shutil
import subprocess
import sys

import pytest

from omnirl.errors import ModelError
from omnirl.media import PixelRule
from omnirl.models import FAMILIES, read_spec


@pytest.fixture
def copy(qwen, tmp_path):
    return shutil.copytree(qwen.path, tmp_path / "copy")


def edit(file, **changes):
    data = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in (data | changes).items() if v != "gone"}))


def test_ids_and_pixels(qwen):
    spec = qwen.spec
    assert (spec.family, spec.template_wraps) == ("qwen_vl", True)
    assert (spec.image_id, spec.image_start_id, spec.image_end_id) == (15, 12, 13)
    assert spec.media_ids == (12, 13, 14, 15, 16)
    assert (spec.stop_ids, spec.pad_id) == ((11, 0), 0)
    assert spec.rule == PixelRule(patch_size=16, merge=2, min_pixels=4096, max_pixels=65536)


def test_older_and_newer_names_of_the_budget(copy):
    edit(copy / "preprocessor_config.json", size="gone", min_pixels=1024, max_pixels=2048)
    assert read_spec(copy).rule == PixelRule(16, 2, 1024, 2048)
    settings = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "processor_config.json").write_text(json.dumps({"image_processor": settings | {"max_pixels": 4096}}))
    assert read_spec(copy).rule == PixelRule(16, 2, 1024, 4096)


def test_other_arguments_of_a_picture(copy):
    """What `tests/models/test_processor.py` says of every family, and this family's own."""
    edit(copy / "preprocessor_config.json", temporal_patch_size=1)
    with pytest.raises(ModelError, match="temporal_patch_size=1 is not supported; omnirl follows temporal_patch_size=2"):
        read_spec(copy)


def test_a_tokenizer_of_another_model(copy, omni):
    shutil.copy(omni.path / "tokenizer.json", copy / "tokenizer.json")
    with pytest.raises(ModelError, match=r"has no token <\|image_pad\|>, <\|vision_start\|>, <\|vision_end\|>"):
        read_spec(copy)


def test_another_image_token(copy):
    edit(copy / "config.json", image_token_id=16)
    with pytest.raises(ModelError, match=r"config\.json has another image_token_id"):
        read_spec(copy)


def test_families_are_the_choices_of_the_configuration(omni, qwen):
    from omnirl.config.limits import CHOICES, CLIP_FAMILIES, MEGATRON_FAMILIES

    assert CHOICES["model.family"] == tuple(FAMILIES)
    assert set(MEGATRON_FAMILIES) <= FAMILIES.keys()
    assert set(CLIP_FAMILIES) == {spec.family for spec in (omni.spec, qwen.spec) if spec.video is not None}


def test_no_torch(qwen):
    code = f"import sys; from pathlib import Path; from omnirl.models import read_spec; read_spec(Path({str(qwen.path)!r})); "
    subprocess.run([sys.executable, "-c", code + "assert not {'torch', 'transformers'} & sys.modules.keys()"], check=True)
