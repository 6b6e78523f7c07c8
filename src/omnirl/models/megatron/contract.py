"""What omnirl uses of Megatron-core beyond its documented interface, checked once at start-up.

`check` raises one error with a remedy when the package is missing, of another version, or lacks one of the symbols; `require`
does the same for the attributes that an object of Megatron's sets on itself.

Example:
    check()
    require(context, CONTEXT)
"""

from importlib import import_module, metadata
from operator import attrgetter

from omnirl.errors import HardwareError

PACKAGE, VERSION = "megatron-core", "0.19.2"
REMEDY = "install it with `uv sync --extra megatron`, or choose another backend"

#: module → names in it; a dot goes into a class
SYMBOLS: dict[str, tuple[str, ...]] = {
    "megatron.core.inference.communication_utils": ("_is_cuda",),
    "megatron.core.inference.contexts.dynamic_context": (
        "DynamicInferenceContext.key_value_cache",
        "DynamicInferenceContext.mamba_states_cache",
        "DynamicInferenceContext.is_decode_only",
    ),
    "megatron.core.inference.engines.dynamic_engine": (
        "DynamicInferenceEngine._add_request",
        "DynamicInferenceEngine._notify_cond_for_new_request",
        "DynamicInferenceEngine.async_step",
        "DynamicInferenceEngine.reset",
    ),
    "megatron.core.inference.inference_request": ("DynamicInferenceRequest.__post_init__",),
    "megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper": ("GPTInferenceWrapper._forward",),
    "megatron.core.inference.sampling.base": ("Sampling.sample_kernel",),
    "megatron.core.inference.text_generation_controllers.text_generation_controller": (
        "TextGenerationController.set_stop_word_finished_ids_callback",
        "TextGenerationController._init_dynamic_sampling_tensors",
    ),
    "megatron.core.inference.utils": ("InferenceMode.set_active", "InferenceMode.unset_active"),
    "megatron.core.models.hybrid.hybrid_block": ("HybridStack.__init__", "HybridStackSubmodules"),
    "megatron.core.models.hybrid.hybrid_model": ("HybridModel.forward",),
    "megatron.core.ssm.mamba_mixer": ("HAVE_MAMBA_SSM", "ExtendedRMSNorm", "MambaMixer.mamba_state_shapes_per_request"),
    "megatron.core.tensor_parallel.random": ("_get_cuda_rng_state", "_set_cuda_rng_state"),
    "megatron.core.transformer.attention": (
        "SelfAttention.get_query_key_value_tensors",
        "SelfAttention._get_pp_layer_offset_for_inference",
    ),
    "torch.autograd": ("_engine_run_backward",),
    "torch.testing._internal.distributed.fake_pg": ("FakeStore",),
}

#: attributes of Megatron's objects
CONTEXT: tuple[str, ...] = (
    "padded_active_token_count",
    "paused_request_count",
    "total_request_count",
    "chunked_prefill_request_id",
    "request_ids",
    "request_query_lengths",
    "request_kv_length_offsets",
    "batch_dimensions",
    "block_size_bytes",
    "kv_block_allocator.total_count",
    "gpu_view.token_to_block_idx",
    "gpu_view.token_to_local_position_within_kv_block",
)
CONTROLLER: tuple[str, ...] = ("_sampling",)
ENGINE: tuple[str, ...] = ("requests", "waiting_request_ids", "_loop")


def check() -> None:
    """Raises `HardwareError` naming what is missing and how to get it."""
    try:
        found = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        raise HardwareError(f"{PACKAGE} {VERSION} is not installed; {REMEDY}.") from None
    if found != VERSION:
        raise HardwareError(f"{PACKAGE} {found} is installed, but omnirl needs {VERSION}; {REMEDY}.")
    for module, names in SYMBOLS.items():
        try:
            holder = import_module(module)
        except ImportError as error:
            raise HardwareError(f"{PACKAGE} {found}: '{module}' cannot be imported ({error}); {REMEDY}.") from error
        require(holder, names, module)


def require(holder: object, names: tuple[str, ...], what: str = "") -> None:
    """Raises `HardwareError` for the first of `names` (dotted) that `holder` lacks."""
    for name in names:
        try:
            attrgetter(name)(holder)
        except AttributeError:
            where = what or type(holder).__name__
            raise HardwareError(
                f"{PACKAGE}: '{where}' has no '{name}', which omnirl uses; it is not the {VERSION} that was tested: {REMEDY}."
            ) from None
