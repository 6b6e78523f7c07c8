"""Prompts → groups of scored trajectories.

Each completion's seed is a hash of (run seed, step, prompt id, index in the group): a rollout is a function of weights and
seed, whatever the batch.

Example:
    runner = RolloutRunner(engines, encoder, env, spec, cfg.rollout, seed=0)
    turns = runner.generate(prompts, group_size=8, step=3, deadline=Deadline.after(600))
    groups = runner.score(prompts, turns)
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from omnirl.config.schema import RolloutConfig
from omnirl.errors import EngineError, RewardError
from omnirl.prompt import PromptEncoder
from omnirl.types import (
    Completion,
    Deadline,
    Environment,
    GenerationRequest,
    Group,
    ModelSpec,
    Prompt,
    SamplingParams,
    Trajectory,
    Turn,
    WorkerGroup,
)


class RolloutRunner:
    """Runs single-turn episodes on one engine group."""

    def __init__(
        self,
        engines: WorkerGroup,
        encoder: PromptEncoder,
        env: Environment,
        spec: ModelSpec,
        settings: RolloutConfig,
        seed: int,
    ) -> None:
        self._engines = engines
        self._encoder = encoder
        self._env = env
        self._spec = spec
        self._settings = settings
        self._seed = seed

    def sampling(self, name: str, *, greedy: bool = False, temperature: float | None = None) -> SamplingParams:
        """The run's sampling semantics for the request called `name`. `temperature` None is `rollout.temperature`."""
        if temperature is None:
            temperature = self._settings.temperature
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
        return SamplingParams(
            max_new_tokens=self._settings.max_new_tokens,
            temperature=0.0 if greedy else temperature,
            seed=int.from_bytes(digest, "little"),
            stop_ids=self._spec.stop_ids,
            banned_ids=self._spec.media_ids,
        )

    def generate(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        step: int,
        deadline: Deadline,
        greedy: bool = False,
        temperature: float | None = None,
    ) -> list[list[Turn]]:
        """For each prompt its `group_size` first turns. Raises the encoder's and the engine's errors; none is dropped."""
        requests = []
        for prompt in prompts:
            encoded = self._encoder.encode(prompt)
            for index in range(group_size):
                name = f"{step}/{prompt.id}/{index}"
                requests.append(GenerationRequest(name, encoded, self.sampling(name, greedy=greedy, temperature=temperature)))
        completions = self._engines.call("generate", requests, deadline.remaining(), deadline=deadline)[0]
        for request, completion in zip(requests, completions, strict=True):
            _check_banned(request, completion)
        turns = [
            Turn(request.prompt, completion, self._encoder.decode(completion.ids))
            for request, completion in zip(requests, completions, strict=True)
        ]
        return [turns[i : i + group_size] for i in range(0, len(turns), group_size)]

    def score(self, prompts: Sequence[Prompt], turns: Sequence[Sequence[Turn]]) -> list[Group]:
        """Ask the environment for each turn's reward. Raises `RewardError`, also when the share of rewards that failed is over
        `rollout.max_reward_errors`."""
        pairs = [(prompt, turn) for prompt, group in zip(prompts, turns, strict=True) for turn in group]
        with ThreadPoolExecutor(self._env.concurrency) as threads:
            scored = iter(
                list(threads.map(self._trajectory, pairs) if self._env.concurrency > 1 else map(self._trajectory, pairs))
            )
        groups = [Group(prompt.id, tuple(islice(scored, len(group)))) for prompt, group in zip(prompts, turns, strict=True)]
        errors = [t.reward.error for group in groups for t in group.trajectories if t.reward.error]
        if len(errors) > self._settings.max_reward_errors * len(pairs):
            raise RewardError(
                f"{len(errors)} of {len(pairs)} rewards failed, more than rollout.max_reward_errors="
                f"{self._settings.max_reward_errors:g} allows; the first: {errors[0]}"
            )
        return groups

    def _trajectory(self, pair: tuple[Prompt, Turn]) -> Trajectory:
        prompt, turn = pair
        reply = self._env.respond(prompt, (turn,))
        if reply.reward is None:
            raise RewardError(f"prompt '{prompt.id}': the environment asks for another turn; rollouts here have one turn.")
        return Trajectory(prompt, (turn,), reply.reward)


def _check_banned(request: GenerationRequest, completion: Completion) -> None:
    """A media id that was sampled has no probability in the trainer. Raises `EngineError`."""
    if sampled := sorted(set(completion.ids.tolist()) & set(request.sampling.banned_ids)):
        raise EngineError(
            f"request '{request.request_id}': the engine sampled {', '.join(map(str, sampled))}, which its request bans (media "
            "ids); its sampling is not that of the log-prob contract, choose another backend.name"
        )
