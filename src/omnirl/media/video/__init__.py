"""Clips: one timeline, one sampling rule, frames at their final size, decoded here or in a worker with a deadline."""

from .decode import VideoJob, frames_at, load_video
from .grid import FrameRule
from .loader import ClipLoader, ClipPolicy
from .pool import DecodePool
from .sampling import SamplingRule, resolve, sample, setting_problems
from .timeline import VideoLimits

__all__ = [
    "ClipLoader",
    "ClipPolicy",
    "DecodePool",
    "FrameRule",
    "SamplingRule",
    "VideoJob",
    "VideoLimits",
    "frames_at",
    "load_video",
    "resolve",
    "sample",
    "setting_problems",
]
