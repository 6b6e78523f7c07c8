from copy import deepcopy
from dataclasses import is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.config import schema
from omnirl.config.check import problems, unavailable
from omnirl.config.keys import known_keys
from omnirl.config.layout import layout
from omnirl.config.limits import CHOICES, RANGES, UNAVAILABLE

BASE = schema.Config(recipe_name="r", suite="smoke", description="x")


def config(**values: object) -> schema.Config:
    """A valid configuration with some keys changed; `__` stands for the dot."""
    cfg = deepcopy(BASE)
    for key, value in values.items():
        *sections, name = key.split("__")
        node: object = cfg
        for section in sections:
            node = getattr(node, section)
        assert hasattr(node, name)
        setattr(node, name, value)
    return cfg


QWEN = {"model__family": "qwen_vl", "model__path": "m"}
VLLM = {"backend__name": "vllm"}
GPU = {"trainer__name": "megatron", "trainer__device": "cuda", "cluster__gpus_per_node": 8, "backend__name": "vllm"}


def test_the_defaults_are_valid():
    assert problems(BASE) == []
    assert unavailable(BASE) == []


def test_every_table_key_exists_and_every_number_has_a_range():
    assert set(CHOICES) | set(RANGES) | set(UNAVAILABLE) <= set(known_keys())
    numbers = {k for k, key in known_keys().items() if type(key.default) in (int, float) and not is_dataclass(key.default)}
    assert {k for k in numbers - set(RANGES) if not k.startswith("model.shape.")} == set()


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"algo__group_size": 1}, "algo.group_size", "at least 2: a group's advantages"),
        ({"algo__train_batch_size": 7}, "algo.train_batch_size", "must divide the step's 256 samples"),
        ({**GPU, "algo__train_batch_size": 4}, "algo.train_batch_size", "must divide by the 8 data-parallel ranks"),
        (
            {"algo__advantage__baseline": "leave"},
            "algo.advantage.baseline",
            "one of leave_one_out, mean, none. Did you mean 'leave_one_out'?",
        ),
        ({"dataset__synthetic__questions": ["cuont"]}, "dataset.synthetic.questions", "Did you mean 'count'?"),
        ({"dataset__synthetic__shapes": []}, "dataset.synthetic.shapes", "is empty"),
        ({"media__background": "red"}, "media.background", "must be white, black, grey or #rrggbb"),
        ({"media__http_hosts": ["localhost"]}, "media.http_hosts", "media.allow_http is false"),
        ({"trainer__packing__enabled": True, "trainer__micro_batch": 4}, "trainer.micro_batch", "must be 0"),
        (
            {"trainer__packing__enabled": True, "trainer__packing__max_tokens": 100},
            "trainer.packing.max_tokens",
            "less than one sequence of backend.max_model_len",
        ),
        ({"cluster__launcher": "process", "media__store": "memory"}, "media.store", "needs shared_memory or carried"),
        ({**GPU, "cluster__gpus_per_node": 2, "cluster__trainer_ranks": 3}, "cluster.trainer_ranks", "the trainer has 2 GPUs"),
        ({"media__min_patches": 9, "media__max_patches": 8}, "media.min_patches", "more than max_patches=8"),
        ({"trainer__lr": float("nan")}, "trainer.lr", "is nan, must be more than 0"),
        ({"trainer__lr": float("inf")}, "trainer.lr", "is inf"),
        ({"rollout__temperature": 0.0}, "rollout.temperature", "more than 0 for training"),
        ({"dataset__synthetic__num_colors": 9}, "dataset.synthetic.num_colors", "at least 1 and at most 8"),
        ({"eval__completions_per_prompt": 2}, "eval.completions_per_prompt", "greedy answers to a prompt are all equal"),
        ({"checkpoint__save_by": "3:45:00"}, "checkpoint.save_by", "is '3:45:00', must be DD:HH:MM:SS and more than 0"),
        ({"checkpoint__save_by": "00:00:00:00"}, "checkpoint.save_by", "more than 0"),
        ({"checkpoint__stop_at": float("nan")}, "checkpoint.stop_at", "is nan, must be a finite number"),
        ({"checkpoint__stop_at": 0.9, "eval__every": 0}, "checkpoint.stop_at", "which eval.every=0 never measures"),
        ({"checkpoint__keep_best": 1}, "checkpoint.every", "is 50, must be a multiple of eval.every=20"),
        ({"checkpoint__keep_best": 1, "checkpoint__every": 0}, "checkpoint.keep_best", "leaves nothing to choose from"),
        ({**VLLM, "eval__temperature": 3.0}, "eval.temperature", "but vLLM has only 0 (greedy)"),
        ({"rollout__max_new_tokens": 2048}, "rollout.max_new_tokens", "no room for a prompt"),
        ({"backend__max_model_len": 4096}, "backend.max_model_len", "more than model.tiny.max_position=2048"),
        ({"env__rewards__exact": 0.0}, "env.rewards", "at least one weight"),
        ({"model__tiny__pattern": "X"}, "model.tiny.pattern", "must be made of M"),
        ({"model__tiny__pattern": ""}, "model.tiny.pattern", "must be made of M"),
        ({"model__tiny__hidden_size": 130}, "model.tiny.hidden_size", "must divide by num_heads=4"),
        ({"parallelism__sp": True}, "parallelism.sp", "needs parallelism.tp of more than 1"),
        ({"parallelism__tp": 2}, "parallelism", "trainer.name=torch does not"),
        ({"backend__parallelism__tp": 2}, "backend.parallelism", "backend.name=hf does not"),
        ({**GPU, "parallelism__tp": 3}, "parallelism", "tp·pp·cp = 3, which does not divide the trainer's 8 ranks"),
        ({**GPU, "parallelism__ep": 4}, "parallelism.ep", "no routed experts"),
        ({**GPU, "model__tiny__pattern": "E", "parallelism__ep": 8}, "parallelism.ep", "must divide model.tiny.num_experts=4"),
        ({**GPU, "backend__parallelism__tp": 3}, "backend.parallelism", "not a divisor of 8 GPUs"),
        ({"trainer__device": "cuda"}, "trainer.device", "set cluster.gpus_per_node"),
        ({"cluster__gpus_per_node": 1}, "trainer.device", "set trainer.device=cuda"),
        ({"cluster__nodes": 2}, "cluster.nodes", "is one machine"),
        ({"cluster__engine_nodes": 1}, "cluster.engine_nodes", "leaves none for the trainer"),
        (
            {"backend__name": "megatron", "backend__megatron__max_tokens": 4},
            "backend.megatron.max_tokens",
            "less than max_requests=256",
        ),
        ({**VLLM, "rollout__temperature": 0.005}, "rollout.temperature", "vLLM has only 0 (greedy) and 0.01 to 2"),
        ({**VLLM, "backend__vllm__max_num_batched_tokens": 9}, "backend.vllm.max_num_batched_tokens", "max_num_seqs=256"),
        ({**VLLM, "backend__parallelism__cp": 2}, "backend.parallelism.cp", "backend.name=vllm does not have"),
        ({"media__min_patches": 9, "media__max_patches": 4}, "media.min_patches", "more than max_patches=4"),
        ({**QWEN, "dataset__make": "clips"}, "dataset.make", "only model.family=nemotron_omni takes clips, not qwen_vl"),
        ({**QWEN, "dataset__name": "vstat", "dataset__path": "d"}, "dataset.name", "whose rows hold clips"),
        *(
            (
                {**QWEN, f"media__video_{name}": 8},
                f"media.video_{name}",
                "is 8, but only model.family=nemotron_omni takes clips",
            )
            for name in ("num_frames", "fps", "min_frames", "max_frames", "patches")
        ),
    ],
)
def test_a_wrong_value_is_named(values, key, text):
    found = problems(config(**values))
    assert any(p.key == key and text in p.text for p in found), found


def test_greedy_sampling_is_allowed_outside_training():
    assert problems(config(rollout__temperature=0.0), training=False) == []


@pytest.mark.parametrize("key", UNAVAILABLE)
def test_what_this_version_cannot_start_is_named(key):
    for value in UNAVAILABLE[key]:
        (problem,) = unavailable(config(**{key.replace(".", "__"): value}))
        assert problem.key == key
        assert repr(value) in problem.text


def test_staleness_is_refused():
    (problem,) = unavailable(config(rollout__max_staleness=1))
    assert problem.key == "rollout.max_staleness"


def test_one_process_cannot_hold_many_ranks():
    values = config(trainer__device="cuda", cluster__gpus_per_node=2)
    assert [p.key for p in unavailable(values)] == ["cluster.launcher"]


sizes = st.sampled_from([1, 2, 3, 4, 8])


@given(tp=sizes, pp=sizes, cp=sizes, ep=sizes, etp=sizes, gpus=st.sampled_from([0, 1, 2, 4, 8, 16]), engine_tp=sizes)
def test_an_accepted_layout_fills_its_world(tp, pp, cp, ep, etp, gpus, engine_tp):
    sizes = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp}
    device = "cuda" if gpus else "cpu"
    cfg = config(**{**GPU, "trainer__device": device, "cluster__gpus_per_node": gpus, "model__path": "m"})
    cfg.parallelism = schema.ParallelismConfig(**sizes)
    cfg.backend.parallelism.tp = engine_tp
    cfg.algo.group_size = 4 * 5 * 9 * 16
    if not problems(cfg):
        lay = layout(cfg)
        assert lay.world == tp * pp * cp * lay.dp == ep * etp * pp * lay.expert_dp
        assert lay.replicas >= 1
        assert lay.world == gpus or not gpus
    elif gpus == 0:
        raise AssertionError("without GPUs the world follows from the layout")


@given(group=st.integers(2, 12), prompts=st.integers(1, 12), batch=st.integers(1, 144))
def test_batch_arithmetic(group, prompts, batch):
    cfg = config(algo__group_size=group, algo__prompts_per_step=prompts, algo__train_batch_size=batch)
    assert bool(problems(cfg)) == (group * prompts % batch != 0)
