"""One exception tree. Each member also inherits the built-in error it specialises.

A message says what is wrong, where (file, sample id, key) and what to change. The command line prints it and exits
with `exit_code`: 1 the run failed, 2 wrong usage or configuration, 3 a gate was not met.
"""

from collections.abc import Mapping
from typing import Any


class OmnirlError(Exception):
    """Base of every error that omnirl raises on purpose."""

    exit_code = 1


class ConfigError(OmnirlError, ValueError):
    """The configuration, a recipe or the command line is wrong."""

    exit_code = 2


class HardwareError(ConfigError):
    """The recipe needs hardware or a package that this machine does not have."""


class DataError(OmnirlError, ValueError):
    """A dataset file or row cannot be used."""

    exit_code = 2


class MediaError(OmnirlError, ValueError):
    """A picture or clip is missing, corrupt, empty or outside the policy."""

    exit_code = 2


class DecodeTimeout(MediaError, TimeoutError):
    """A clip was not decoded within `media.decode_timeout_s`."""


class PlaceholderMismatch(OmnirlError, ValueError):
    """Placeholders and media (or embeddings) differ in number."""

    exit_code = 2


class PromptTooLong(OmnirlError, ValueError):
    """A prompt is longer than the context after expansion."""

    exit_code = 2


class PrefixMismatch(OmnirlError, ValueError):
    """A later turn's prompt does not start with the earlier ids."""


class ModelError(OmnirlError, ValueError):
    """A checkpoint directory cannot be built, read or is not of a supported family."""

    exit_code = 2


class EngineError(OmnirlError, RuntimeError):
    """A generation engine failed or refused a request."""


class WorkerError(OmnirlError, RuntimeError):
    """A worker process died or raised; the message carries its own error text."""


class DeadlineExceeded(OmnirlError, TimeoutError):
    """A wait passed its deadline."""


class RefitTimeout(DeadlineExceeded):
    """A weight transfer passed its deadline."""


class WeightMismatch(OmnirlError, KeyError):
    """Names or shapes of transferred weights do not match the receiver's."""

    def __str__(self) -> str:  # KeyError quotes its argument
        return str(self.args[0]) if self.args else ""


class RewardError(OmnirlError, RuntimeError):
    """A reward could not be computed; never turned into a zero reward."""


class NothingToLearn(OmnirlError, RuntimeError):
    """Dynamic sampling found too few groups whose rewards differ."""


class CheckpointError(OmnirlError, RuntimeError):
    """A checkpoint cannot be written or read."""


class CheckpointMismatch(CheckpointError, ValueError):
    """There is no such checkpoint, or it is of a run with another configuration."""

    exit_code = 2


class TrainingDiverged(OmnirlError, ArithmeticError):
    """A loss or gradient is not finite. `diagnosis`: what was found out about it, ready to be written as JSON."""

    def __init__(self, message: str, diagnosis: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis


class ParityError(OmnirlError, AssertionError):
    """A parity gate was not met."""

    exit_code = 3
