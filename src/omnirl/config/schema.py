"""The configuration as dataclasses: every key, its type, default and meaning. Imports neither torch nor Hydra.

The comment after a field (`#:`) is its one-line documentation: help and the reference page are made from it.
"""

from dataclasses import dataclass, field
from typing import Any

MISSING: Any = "???"  # OmegaConf's word for it; importing OmegaConf would slow down `omnirl --help`


@dataclass
class TinyModelConfig:
    """A miniature of `model.family` built from a seed, used when `model.path` is null."""

    pattern: str = "*-*-"  #: layers of the language model: M Mamba-2, * attention, - MLP, E experts; qwen_vl repeats *-
    hidden_size: int = 128  #: width of the language model
    num_heads: int = 4  #: attention heads (two key-value heads)
    ffn_size: int = 256  #: width of the MLP layers
    chunk_size: int = 16  #: Mamba-2 scan chunk, in tokens
    num_experts: int = 4  #: routed experts of an E layer
    experts_per_token: int = 2  #: experts that a token uses
    vision_hidden_size: int = 128  #: width of the vision tower
    vision_layers: int = 2  #: blocks of the vision tower
    vision_heads: int = 4  #: heads of the vision tower
    max_image_size: int = 256  #: largest side of the position table, in pixels
    max_position: int = 2048  #: longest context, in tokens
    init_scale: float = 1.0  #: factor on all matrices; above 1 the untrained model has distinct answers
    seed: int = 0  #: seed of the weights


@dataclass
class ModelShapeConfig:
    """Size of a model whose checkpoint is not at hand; only `--dry-run` reads it."""

    total_params: float | None = None  #: parameters in all
    expert_params: float = 0.0  #: of which in routed experts (split by EP)
    num_layers: int | None = None  #: layers of the language model
    attention_layers: int | None = None  #: of which attention (they hold a KV cache)
    mamba_layers: int = 0  #: of which Mamba-2 (they hold a state)
    mamba_state_size: int = 0  #: numbers in the state of one Mamba-2 layer for one sequence (recurrence and convolution)
    hidden_size: int | None = None  #: width of the language model
    kv_heads: int | None = None  #: key-value heads
    head_dim: int | None = None  #: width of a head
    vocab_size: int | None = None  #: rows of the output layer


@dataclass
class LoraConfig:
    """Low-rank adapters beside frozen weights."""

    rank: int = 0  #: rank of the adapters; 0 trains the weights themselves
    alpha: float = 32.0  #: an adapter counts alpha / rank
    dropout: float = 0.0  #: share of an adapter's inputs that a training step drops
    targets: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])  #: last names of linear layers


@dataclass
class ModelConfig:
    """Which model is trained."""

    family: str = "nemotron_omni"  #: model family: nemotron_omni or qwen_vl (the Qwen3-VL models)
    path: str | None = None  #: checkpoint directory in Hugging Face layout; null builds `model.tiny` in `cache_dir`
    dtype: str = "float32"  #: float32 or bfloat16
    freeze: list[str] = field(default_factory=list)  #: parameter-name prefixes that are not trained
    lora: LoraConfig = field(default_factory=LoraConfig)  #: adapters
    tiny: TinyModelConfig = field(default_factory=TinyModelConfig)  #: the miniature model
    shape: ModelShapeConfig = field(default_factory=ModelShapeConfig)  #: size for `--dry-run`


@dataclass
class ParallelismConfig:
    """How one model is split over ranks."""

    tp: int = 1  #: tensor parallel size
    sp: bool = False  #: sequence parallel (needs tp > 1)
    pp: int = 1  #: pipeline parallel size
    cp: int = 1  #: context parallel size
    ep: int = 1  #: expert parallel size
    etp: int = 1  #: tensor parallel size inside experts


@dataclass
class HfConfig:
    """The transformers engine."""

    max_batch: int = 256  #: rows decoded together
    threads: int = 0  #: torch threads; 0 keeps torch's choice


@dataclass
class VllmConfig:
    """The vLLM engine."""

    gpu_memory_utilization: float = 0.5  #: share of the GPU's memory that vLLM takes
    enforce_eager: bool = True  #: no CUDA graphs
    max_num_batched_tokens: int = 16384  #: tokens of one engine step
    max_num_seqs: int = 256  #: sequences of one engine step
    kv_cache_memory_mb: int = 128  #: key-value cache on the CPU, in MiB


@dataclass
class MegatronEngineConfig:
    """The Megatron-core dynamic engine."""

    buffer_size_gb: float = 20.0  #: most memory of the key-value and state cache, in GiB
    block_size: int = 256  #: tokens of one cache block
    max_requests: int = 256  #: requests of one engine step
    max_tokens: int = 16384  #: tokens of one engine step; a longer prompt is computed in several


@dataclass
class BackendConfig:
    """The generation engine. All blocks are always present; `name` picks one."""

    name: str = "hf"  #: hf, vllm or megatron
    max_model_len: int = 2048  #: context in tokens, prompt after expansion plus completion
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)  #: the engine's own layout
    hf: HfConfig = field(default_factory=HfConfig)  #: transformers
    vllm: VllmConfig = field(default_factory=VllmConfig)  #: vLLM
    megatron: MegatronEngineConfig = field(default_factory=MegatronEngineConfig)  #: Megatron-core


@dataclass
class RewardConfig:
    """Weights of the reward parts; they are normalised to a sum of one. All but `format` and `custom` compare the last
    well-formed answer with the gold one."""

    exact: float = 1.0  #: equal: numbers by value, anything else as normalised text
    format: float = 0.0  #: the completion keeps to the answer format, after an optional <think> block
    numeric: float = 0.0  #: a number within `env.tolerance` or `env.relative_tolerance`
    choice: float = 0.0  #: the same letter of a multiple-choice question
    match: float = 0.0  #: normalised text, compared by `env.match`
    maths: float = 0.0  #: the same mathematical object, by math-verify
    iou: float = 0.0  #: intersection over union of two boxes
    giou: float = 0.0  #: (1 + GIoU) / 2 of two boxes
    point: float = 0.0  #: nearness to a gold point, or inside a gold box
    custom: float = 0.0  #: the function that `env.rewards_from` names


@dataclass
class EnvConfig:
    """The environment that answers and scores completions."""

    name: str = "single_turn"  #: single_turn: one completion, scored by `env.rewards`; nemo_gym: NeMo-Gym servers
    rewards: RewardConfig = field(default_factory=RewardConfig)  #: weights of the reward parts; a row's `reward` replaces them
    rewards_from: str | None = None  #: own reward, package.module:function; called with the text and the row
    answer: str = "tag"  #: where the answer is: tag (the last <answer>…</answer>) or boxed (the last \\boxed{…})
    word_numbers: bool = False  #: accept "three" for 3
    tolerance: float = 0.0  #: largest difference that `numeric` accepts
    relative_tolerance: float = 0.0  #: the same, as a share of the gold number
    match: str = "equal"  #: how `match` compares: equal, contains or ratio
    space: float = 1000.0  #: extent of the coordinates of boxes and points: 1 for shares of a side, 1000 for thousandths
    point_distance: float = 0.15  #: distance, as a share of the space, from which on `point` is 0
    reward_timeout_s: float = 10.0  #: limit of one call of a verifier (maths, custom), after which it is killed
    reward_workers: int = 2  #: processes of verifiers
    on_reward_error: str = "drop"  #: a reward that failed: drop (leave the completion out and count it) or fail (end the run)


@dataclass
class SyntheticConfig:
    """Pictures made by code, used when `dataset.path` is null."""

    size: int = 64  #: side of the square picture, in pixels
    num_train: int = 4096  #: training rows
    num_eval: int = 1024  #: held-out rows (disjoint seeds)
    max_objects: int = 4  #: most objects in a picture
    num_colors: int = 6  #: colours in use, 1 to 8
    shapes: list[str] = field(default_factory=lambda: ["circle"])  #: circle, square, triangle
    questions: list[str] = field(default_factory=lambda: ["count", "color"])  #: kinds of questions, which take turns
    min_radius: float = 6.0  #: smallest object radius, in pixels of a 64-pixel picture
    max_radius: float = 9.0  #: largest object radius, in pixels of a 64-pixel picture
    seed: int = 0  #: seed of the pictures


@dataclass
class ClipsConfig:
    """Clips made by code, used when `dataset.path` is null and `dataset.make` is clips."""

    kinds: list[str] = field(default_factory=lambda: ["count", "cups", "stack"])  #: count, cups, stack: each needs all frames
    frames: int = 6  #: frames of a clip
    fps: float = 2.0  #: frames a second
    size: int = 64  #: side of the square frames, in pixels; even
    max_count: int = 4  #: most circles of a count
    num_colors: int = 3  #: colours of a stack, 1 to 8
    num_train: int = 2048  #: training rows
    num_eval: int = 512  #: held-out rows (disjoint seeds)
    format: str = "mp4"  #: mp4 (H.264) or frames (a folder of PNG files)
    seed: int = 0  #: seed of the clips


@dataclass
class DatasetConfig:
    """Where rows come from."""

    name: str = "jsonl"  #: layout: jsonl, parquet, hf, nemo_gym, clevr_cogent, geometry3k, mmpr_tiny, refcoco or vstat
    path: str | None = None  #: folder of the dataset, or its one file; null makes `dataset.make` in `cache_dir`
    train: str | None = None  #: training file (jsonl, nemo_gym) or split in `path`; null takes the layout's own
    eval: str | None = None  #: held-out file or split in `path`; null takes the layout's own, or holds out `eval_share`
    eval_share: float = 0.05  #: share of the training rows that is held out when there is no other split
    columns: Any = None  #: names of a table's columns, some of {id, question, answer, images}; null: the fields of JSONL rows
    box_space: int = 1000  #: extent to which the boxes of refcoco are rescaled; `env.space` must be equal
    make: str = "pictures"  #: what is made when `path` is null: pictures (`synthetic`) or clips
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)  #: pictures made by code
    clips: ClipsConfig = field(default_factory=ClipsConfig)  #: clips made by code


@dataclass
class PromptConfig:
    """How a row becomes ids."""

    system: str | None = None  #: system message put before each prompt
    suffix: str = ""  #: text put after the user's last part
    template: str | None = None  #: chat-template file; null takes the checkpoint's
    template_kwargs: Any = None  #: variables for the template, e.g. {enable_thinking: false}; for all rows and requests
    over_length: str = "error"  #: a row over `backend.max_model_len`: error; drop leaves it out; mask trains nothing on it


@dataclass
class MediaConfig:
    """How pictures are read; the same for trainer and engines."""

    min_patches: int | None = None  #: fewest patches of a picture; null takes the checkpoint's
    max_patches: int | None = None  #: most patches of a picture; null takes the checkpoint's
    max_pixels: int = 100_000_000  #: a picture with more pixels in its header is refused before decoding
    max_bytes: int = 67_108_864  #: a larger file or body is refused
    background: str = "white"  #: colour under transparent pixels: white, black, grey or #rrggbb
    root: str | None = None  #: folder in which all files must lie, links resolved; null allows any
    allow_http: bool = False  #: fetch http(s) URLs, from public addresses only
    http_hosts: list[str] = field(default_factory=list)  #: hosts that may have a private address
    fetch_timeout_s: float = 10.0  #: longest fetch of one URL, redirects and body included, in seconds
    store: str | None = None  #: memory, shared_memory or carried (sent along); null takes memory where all is one process
    store_mb: int = 4096  #: most pixels that the store keeps, in MiB; what a running step uses is never dropped
    max_per_prompt: int = 8  #: most pictures and clips of one prompt
    video_backend: str = "pyav"  #: reader of clips: pyav, decord or torchcodec (needs FFmpeg); all give the same frames
    video_workers: int = 1  #: processes that decode clips, each ended and replaced after the deadline; 0 decodes in place
    decode_timeout_s: float = 60.0  #: longest decoding of one clip, in seconds
    video_num_frames: int | None = None  #: evenly spaced frames of a clip; null takes the checkpoint's, else 32
    video_fps: float | None = None  #: frames a second, instead of `video_num_frames`
    video_min_frames: int | None = None  #: fewest frames of a clip that has them; null takes the checkpoint's, else 1
    video_max_frames: int | None = None  #: most frames of a clip; null takes the checkpoint's, else 256
    video_patches: int | None = None  #: patches of a frame; null takes the checkpoint's
    max_video_s: float = 7200.0  #: a longer clip is refused before decoding
    max_video_frames: int = 1_000_000  #: a clip with more frames is refused before decoding
    max_video_bytes: int = 4_294_967_296  #: a larger file is refused


@dataclass
class AdvantageConfig:
    """From rewards to advantages."""

    estimator: str = "group"  #: group, reinforce_plus_plus (whitened over the step's tokens) or gdpo (part by part)
    baseline: str = "mean"  #: what a reward is compared with: leave_one_out, mean or none
    normalize: bool = True  #: divide by the group's standard deviation (reinforce_plus_plus: by that of the batch's tokens)
    part_weights: Any = None  #: weights of the reward parts for gdpo, e.g. {exact: 1, format: 0.2}; null and absent ones are 1
    clip_low: float | None = None  #: smallest advantage; null has no limit
    clip_high: float | None = None  #: largest advantage; null has no limit


@dataclass
class RewardScalingConfig:
    """A linear map of the rewards before they become advantages."""

    enabled: bool = False  #: limit rewards to the source range and map it onto the target range
    source_min: float = 0.0  #: reward that becomes target_min; lower ones do too
    source_max: float = 1.0  #: reward that becomes target_max; higher ones do too
    target_min: float = 0.0  #: reward at source_min
    target_max: float = 1.0  #: reward at source_max


@dataclass
class RewardShapingConfig:
    """Less reward for completions that use up their token budget, `rollout.max_new_tokens`."""

    overlong_buffer: int = 0  #: last tokens of the budget, over which the penalty grows from 0; 0 has no penalty
    overlong_penalty: float = 1.0  #: penalty of a completion that uses the whole budget
    truncated_factor: float = 1.0  #: factor on the positive reward of a completion that was cut off


@dataclass
class LossConfig:
    """The policy objective of a token."""

    kind: str = "ppo"  #: ppo, gspo (one ratio a sequence), cispo (clipped ratio as a weight) or reinforce (no ratio)
    clip_min: float = 0.2  #: lower clip range of the ratio
    clip_max: float = 0.2  #: upper clip range of the ratio
    dual_clip: float | None = None  #: most ratio that counts where the advantage is negative; null has no limit
    on_policy_ratio: bool = False  #: ratio 1 with its gradient, whatever the old log-probs (needs one optimizer step a step)
    reduction: str = "token"  #: token: mean over the batch's tokens; sequence: mean of per-sequence means
    nll_coef: float = 0.0  #: weight of the negative log-likelihood of samples with a positive reward


@dataclass
class KlConfig:
    """The penalty against the reference model: the policy at the start of GRPO."""

    coef: float = 0.0  #: weight; 0 keeps no reference
    estimator: str = "k3"  #: k1, k2 or k3
    input_limit: float | None = 20.0  #: largest |log-ratio|; beyond it the gradient is zero. null has no limit
    output_limit: float | None = 10.0  #: largest penalty of a token; beyond it the gradient is zero. null has no limit
    on_policy: bool = False  #: weight tokens by current policy over engine, as if the current policy had sampled them
    in_reward: bool = False  #: take the penalty off the advantages of the tokens instead of adding it to the loss


@dataclass
class CorrectionConfig:
    """Importance weights, trainer over engine, that correct for what the two compute differently."""

    weights: str = "none"  #: none, token or sequence
    truncation: str = "none"  #: none, tis (to the bounds), icepop (0 outside) or seq_mask_tis (0 for sequences outside)
    min: float | None = None  #: lower bound of the truncation; tis takes 0 for null
    max: float | None = None  #: upper bound of the truncation


@dataclass
class MismatchConfig:
    """What is done about tokens on which trainer and engine disagree."""

    max_sequence_error: float | None = None  #: leave out sequences whose mean of exp|gen − old| is above; null leaves none out
    alarm_share: float = 0.1  #: a larger share of left-out sequences is reported
    token_threshold: float = 2.0  #: exp|gen − old| from which a token counts in train/token_error_over_threshold


@dataclass
class DynamicSamplingConfig:
    """Generate until `algo.prompts_per_step` groups have rewards that differ (DAPO)."""

    enabled: bool = False  #: do so; the prompts of surplus groups come first in the next step
    max_batches: int = 10  #: most generation batches of a step, after which the run ends with a diagnosis
    batch_multiplier: float = 1.0  #: prompts of a generation batch, over algo.prompts_per_step


@dataclass
class AlgoConfig:
    """GRPO and its relatives."""

    group_size: int = 8  #: completions of each prompt
    prompts_per_step: int = 32  #: prompts of each step
    train_batch_size: int | None = None  #: samples of one optimizer step; null takes the whole step
    drop_zero_variance: bool = True  #: leave groups whose rewards are all equal out of the batch
    overlong_filter: bool = False  #: do not train on completions that were cut off; they still count in the baseline
    equal_rewards_patience: int = 5  #: steps in a row without any difference in a group's rewards that are reported
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)  #: from rewards to advantages
    reward_scaling: RewardScalingConfig = field(default_factory=RewardScalingConfig)  #: linear map of rewards
    reward_shaping: RewardShapingConfig = field(default_factory=RewardShapingConfig)  #: length penalties
    loss: LossConfig = field(default_factory=LossConfig)  #: policy objective
    kl: KlConfig = field(default_factory=KlConfig)  #: penalty against the reference
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)  #: importance weights
    mismatch: MismatchConfig = field(default_factory=MismatchConfig)  #: outliers between trainer and engine
    dynamic_sampling: DynamicSamplingConfig = field(default_factory=DynamicSamplingConfig)  #: until rewards differ


@dataclass
class WarmupConfig:
    """Supervised cold start on the rows' targets, before GRPO."""

    max_steps: int = 0  #: most supervised steps; 0 leaves the phase out
    batch_size: int = 64  #: samples of one supervised step
    lr: float = 5.0e-4  #: peak learning rate
    lr_warmup_steps: int = 30  #: steps of linear learning-rate increase
    stop_accuracy: float = 0.5  #: end the phase once `eval/accuracy` reaches this
    eval_every: int = 2  #: steps between accuracy checks
    eval_from: int = 100  #: first step with an accuracy check
    eval_samples: int = 512  #: held-out prompts of an accuracy check


@dataclass
class PackingConfig:
    """Several sequences in one row of a forward pass, without padding."""

    enabled: bool = False  #: pack; `trainer.micro_batch` then must be 0
    max_tokens: int = 4096  #: tokens of one row, prompts and completions; the row of a rank is one microbatch


@dataclass
class TrainerConfig:
    """The optimizer and its loop."""

    name: str = "torch"  #: torch or megatron
    device: str = "cpu"  #: cpu or cuda
    max_steps: int = 100  #: GRPO steps
    lr: float = 1.0e-6  #: peak learning rate
    lr_warmup_steps: int = 0  #: steps of linear learning-rate increase
    lr_schedule: str = "constant"  #: constant, linear or cosine (to lr_min_ratio at max_steps)
    lr_min_ratio: float = 0.0  #: final learning rate over the peak
    weight_decay: float = 0.0  #: AdamW weight decay
    beta1: float = 0.9  #: AdamW first moment
    beta2: float = 0.999  #: AdamW second moment
    grad_clip: float = 1.0  #: largest gradient norm
    micro_batch: int = 0  #: sequences of one forward pass of a rank; 0 takes all that it has
    packing: PackingConfig = field(default_factory=PackingConfig)  #: rows without padding
    data_parallel: str = "ddp"  #: several ranks: ddp keeps the whole model on each, fsdp2 shards weights and optimizer states
    threads: int = 0  #: torch threads; 0 keeps torch's choice
    activation_checkpointing: bool = False  #: recompute activations in the backward pass
    warmup: WarmupConfig = field(default_factory=WarmupConfig)  #: supervised cold start


@dataclass
class RolloutConfig:
    """How completions are sampled."""

    temperature: float = 1.0  #: sampling temperature; log-probs are taken at the same one
    max_new_tokens: int = 16  #: token budget of a completion
    max_staleness: int = 0  #: policy versions that a completion may be behind; 0 is synchronous
    timeout_s: float = 600.0  #: deadline of one step's rollouts, in seconds
    max_reward_errors: float = 0.5  #: largest share of a step's rewards that may fail before the run ends


@dataclass
class EvalConfig:
    """Accuracy on held-out prompts."""

    every: int = 20  #: steps between evaluations; 0 only at the start and the end
    start: bool = True  #: evaluate before the first GRPO step
    end: bool = True  #: evaluate after the last GRPO step
    samples: int = 256  #: prompts of an evaluation during the run
    final_samples: int = 1024  #: prompts of the evaluations at the start and the end of GRPO
    temperature: float = 0.0  #: sampling temperature of the answers; 0 is greedy
    completions_per_prompt: int = 1  #: answers to each prompt; more than 1 adds `eval/pass_k`


@dataclass
class CheckpointConfig:
    """Checkpoints of a run, and when it ends early."""

    every: int = 50  #: steps between checkpoints; 0 only at the end
    keep: int = 2  #: newest checkpoints that are kept
    keep_best: int = 0  #: checkpoints with the best `metric` that are kept besides
    metric: str = "eval/accuracy"  #: metric of `keep_best` and `stop_at`; any of `metrics.jsonl`
    higher_is_better: bool = True  #: whether a larger `metric` is better
    stop_at: float | None = None  #: end the run once `metric` is this good
    save_by: str | None = None  #: time of the run, as DD:HH:MM:SS from its start, by which it saves and leaves
    save_optimizer: bool = True  #: save the optimizer too; without it a resumed run is not the uninterrupted one
    resume: str | None = None  #: run folder to continue; `auto`: `hydra.run.dir`, from the start where it has no checkpoint


@dataclass
class ClusterConfig:
    """Machines of the run."""

    name: str = "local"  #: local: one machine; slurm: an allocation of `nodes`
    nodes: int = 1  #: machines
    gpus_per_node: int = 0  #: GPUs of a machine, all of them used; 0 runs on the CPU, with as many ranks as the layout needs
    engine_nodes: int = 0  #: machines for engines; 0 shares the trainer's
    gpu_memory_gb: float = 80.0  #: memory of one GPU, in GB, for the `--dry-run` estimate
    launcher: str = "inproc"  #: inproc, process or ray
    trainer_ranks: int | None = None  #: ranks of the trainer; null: one a GPU, on the CPU as many as the layout needs


@dataclass
class WandbConfig:
    """Weights & Biases (extra `tracking`)."""

    enabled: bool = False  #: send metrics and configuration there, under the same names
    project: str = "omnirl"  #: project
    entity: str | None = None  #: user or team; null: the account's own
    name: str | None = None  #: name of the run; null: that of its folder
    mode: str = "online"  #: online, or offline for `wandb sync` later


@dataclass
class MlflowConfig:
    """MLflow (extra `tracking`)."""

    enabled: bool = False  #: send metrics and configuration there, under the same names
    uri: str | None = None  #: server or store; null: `$MLFLOW_TRACKING_URI`, else `mlflow.db` in the run folder
    experiment: str = "omnirl"  #: experiment; made when there is none
    name: str | None = None  #: name of the run; null: that of its folder


@dataclass
class LoggerConfig:
    """Where metrics go, besides `metrics.jsonl`."""

    tensorboard: bool = True  #: write TensorBoard event files to `tensorboard/` in the run folder
    progress: bool = True  #: live table on a terminal, plain lines elsewhere
    samples_every: int = 20  #: steps between saved sample completions; 0 never
    samples_groups: int = 4  #: groups that are saved of such a step
    report: bool = True  #: write `report.html` when the run ends
    wandb: WandbConfig = field(default_factory=WandbConfig)  #: Weights & Biases
    mlflow: MlflowConfig = field(default_factory=MlflowConfig)  #: MLflow


@dataclass
class Config:
    """The whole configuration."""

    recipe_name: str = MISSING  #: name of the recipe, set by omnirl
    suite: str = MISSING  #: smoke, engines, nightly, release, performance or disabled
    disabled_reason: str | None = None  #: why a recipe in the suite `disabled` is there
    description: str = MISSING  #: one line about the recipe
    seed: int = 0  #: seed of the run
    cache_dir: str = "${oc.env:OMNIRL_CACHE,'~/.cache/omnirl'}"  #: folder for models and datasets that omnirl builds
    model: ModelConfig = field(default_factory=ModelConfig)  #: the model
    backend: BackendConfig = field(default_factory=BackendConfig)  #: the generation engine
    env: EnvConfig = field(default_factory=EnvConfig)  #: the environment
    dataset: DatasetConfig = field(default_factory=DatasetConfig)  #: the rows
    prompt: PromptConfig = field(default_factory=PromptConfig)  #: from row to ids
    media: MediaConfig = field(default_factory=MediaConfig)  #: pictures
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)  #: the trainer's layout
    algo: AlgoConfig = field(default_factory=AlgoConfig)  #: the algorithm
    trainer: TrainerConfig = field(default_factory=TrainerConfig)  #: the trainer
    rollout: RolloutConfig = field(default_factory=RolloutConfig)  #: sampling
    eval: EvalConfig = field(default_factory=EvalConfig)  #: evaluation
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)  #: checkpoints
    cluster: ClusterConfig = field(default_factory=ClusterConfig)  #: machines
    logger: LoggerConfig = field(default_factory=LoggerConfig)  #: metric sinks
