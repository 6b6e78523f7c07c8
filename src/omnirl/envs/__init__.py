"""Environments: what answers and scores completions."""

from omnirl.config.schema import EnvConfig
from omnirl.errors import ConfigError
from omnirl.types import Environment

from .single_turn import SingleTurnEnv

__all__ = ["SingleTurnEnv", "make_env"]


def make_env(cfg: EnvConfig) -> Environment:
    """The environment `env.name`. Raises `ConfigError` for a name that does not exist."""
    envs = {"single_turn": SingleTurnEnv}
    if cfg.name not in envs:
        raise ConfigError(f"env.name={cfg.name!r}: choose one of {', '.join(envs)}")
    return envs[cfg.name](cfg)
