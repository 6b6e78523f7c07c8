import pytest

from omnirl.config.complete import candidates, values


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("recipe=tiny_omni_h", ["recipe=tiny_omni_hybrid"]),
        ("parallelism=tp2", ["parallelism=tp2", "parallelism=tp2_cp2"]),
        ("trainer.name=", ["trainer.name=torch", "trainer.name=megatron"]),
        ("trainer.na", ["trainer.name=", "trainer.name=torch", "trainer.name=megatron"]),
        ("trainer.max_s", ["trainer.max_steps=", "trainer.max_steps=100"]),
        ("algo.advantage.normalize=", ["algo.advantage.normalize=true", "algo.advantage.normalize=false"]),
        ("algo.loss.clip", ["algo.loss.clip_min=", "algo.loss.clip_max="]),
        ("nothing", []),
        ("nothing=", []),
    ],
)
def test_candidates(here, word, texts):
    assert [text for text, _ in candidates(word)] == texts


def test_keys_carry_their_documentation(here):
    assert ("algo.loss.clip_min=", "lower clip range of the ratio") in candidates("algo.loss.clip")


def test_the_next_value_of_a_sweep(here):
    assert values("recipe", "tiny_omni_count,tiny_omni_m") == [("tiny_omni_count,tiny_omni_moe", "")]
