import sys

import pytest

from omnirl.config.limits import CHOICES, MEGATRON_FAMILIES
from omnirl.config.schema import BackendConfig
from omnirl.engines import make_engine
from omnirl.errors import ModelError
from omnirl.models import FAMILIES, family


def test_compose_time_knows_the_families():
    assert set(CHOICES["model.family"]) == set(FAMILIES)
    assert set(MEGATRON_FAMILIES) == {name for name in FAMILIES if family(name).megatron_support() is not None}


def test_asking_a_family_imports_no_megatron():
    before = "megatron" in sys.modules
    family("nemotron_omni").megatron_support()
    assert ("megatron" in sys.modules) == before


def test_an_engine_refuses_a_family_that_megatron_lacks(qwen):
    with pytest.raises(ModelError, match="holds a qwen_vl, which does not run on megatron"):
        make_engine("megatron", checkpoint=qwen.path, store=qwen.store, backend=BackendConfig(), dtype="float32", device="cpu")
