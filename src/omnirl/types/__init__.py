"""Data types and seams of omnirl: frozen dataclasses and protocols, numpy only (no torch)."""

from .generation import (
    Completion,
    Deadline,
    Delta,
    GenerationRequest,
    SamplingParams,
    StopReason,
    VersionSpan,
    spans,
)
from .ids import CompactIds, ExpandedIds
from .media import Grid, Image, MediaRef, SizeRule, Video, VideoSampling, VideoSettings
from .model import ModelSpec
from .prompt import EncodedPrompt, ImagePart, Message, Part, Prompt, TextPart
from .seams import (
    Engine,
    EngineCapabilities,
    Environment,
    EnvReply,
    Launcher,
    MediaStore,
    RequestHandle,
    Tracker,
    Trainer,
    WeightSync,
    WorkerGroup,
)
from .trajectory import Group, Reward, TrainingBatch, TrainingSample, Trajectory, Turn
from .weights import SharedWeights, WeightBucket, WeightEntry

__all__ = [
    "CompactIds",
    "Completion",
    "Deadline",
    "Delta",
    "EncodedPrompt",
    "Engine",
    "EngineCapabilities",
    "EnvReply",
    "Environment",
    "ExpandedIds",
    "GenerationRequest",
    "Grid",
    "Group",
    "Image",
    "ImagePart",
    "Launcher",
    "MediaRef",
    "MediaStore",
    "Message",
    "ModelSpec",
    "Part",
    "Prompt",
    "RequestHandle",
    "Reward",
    "SamplingParams",
    "SharedWeights",
    "SizeRule",
    "StopReason",
    "TextPart",
    "Tracker",
    "Trainer",
    "TrainingBatch",
    "TrainingSample",
    "Trajectory",
    "Turn",
    "VersionSpan",
    "Video",
    "VideoSampling",
    "VideoSettings",
    "WeightBucket",
    "WeightEntry",
    "WeightSync",
    "WorkerGroup",
    "spans",
]
