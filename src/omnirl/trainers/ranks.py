"""The data-parallel ranks of a trainer: gradients, metrics and scores of each → those of the global batch.

A loss is a share of the *global* mean, so gradients are summed, never averaged. In `ddp` every rank holds the model, and one
sum per optimizer step makes the gradients equal, however many forward passes each rank made. In `fsdp2` parameters, gradients
and optimizer states are shards (`torch.distributed.tensor.DTensor`), and all ranks make the same number of passes.

Example:
    ranks = Ranks(rank=0, size=2, device="cpu", mode="ddp", timeout_s=600)
    norm = ranks.reduce_gradients(parameters, limit=1.0)
    rows = ranks.gather(own_rows)     # all ranks' rows on every rank, in rank order
"""

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from omnirl.errors import WorkerError

_BUCKET = 1 << 24
"""Gradient elements of one collective (64 MiB of float32)."""


class Ranks:
    """Rank `rank` of `size`. A single rank has no process group, and every collective is the identity.

    `timeout_s`: deadline of a collective, after which it raises (gloo) or ends the process (NCCL); never a hang.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu", mode: str = "ddp", timeout_s: float = 600.0) -> None:
        self.rank, self.size = rank, size
        self.device = device
        self.sharded = size > 1 and mode == "fsdp2"
        self._joined = size > 1 and not dist.is_initialized()
        if size > 1 and device == "cuda":
            self.device = f"cuda:{os.environ.get('LOCAL_RANK', rank)}"
            torch.cuda.set_device(self.device)
        if self._joined:
            _join(rank, size, "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timedelta(seconds=timeout_s))

    @property
    def first(self) -> bool:
        """Whether this is the rank that answers for all."""
        return self.rank == 0

    def shard(self, root: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Shard the parameters of `blocks`, one unit each, and what is left of `root`. Not in `fsdp2`: nothing."""
        if not self.sharded:
            return
        mesh = dist.init_device_mesh(self.device.partition(":")[0], (self.size,))
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for module in (*blocks, root):
            fully_shard(module, mesh=mesh, mp_policy=policy)
            assert isinstance(module, FSDPModule)  # `fully_shard` changed its class
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other

    def _sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum over ranks. A parameter that no sample reached has gradient zero from here on, in any layout.

        One sum after the last microbatch, and not `DistributedDataParallel`: its reducer leaves out what the last forward pass
        did not use, so pictures of an earlier microbatch would train each rank's vision tower by itself.
        """
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.size == 1 or self.sharded:
            return
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([grad.float().flatten() for grad in bucket])
            dist.all_reduce(flat)
            for grad, total in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(total.view_as(grad))

    def reshard(self, root: nn.Module) -> None:
        """Let go of the whole parameters of a pass that no backward pass follows."""
        if isinstance(root, FSDPModule):
            root.reshard()

    def reduce_gradients(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """Sum gradients over ranks and scale them so that their norm is at most `limit`; returns the norm before."""
        self._sum_gradients(parameters)
        return self._clip_gradients(parameters, limit)

    def _clip_gradients(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = full(norm)
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return float(norm)

    def gather(self, rows: Sequence[Any]) -> list[Any]:
        """Picklable rows of every rank, in rank order, on every rank."""
        if self.size == 1:
            return list(rows)
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, list(rows))
        return [row for part in parts for row in part]

    def together(self, action: Callable[[], None]) -> None:
        """Run `action` on the first rank and raise its error there; the others wait, and say that it failed."""
        failed = ""
        error: Exception | None = None
        if self.first:
            try:
                action()
            except Exception as raised:  # re-raised below, once the other ranks know
                error, failed = raised, str(raised)
        failure = "".join(self.gather([failed]))
        if error is not None:
            raise error
        if failure:
            raise WorkerError(f"rank {self.rank}: the first rank failed: {failure}")

    def close(self) -> None:
        """Leave the process group that this object joined."""
        if self._joined and dist.is_initialized():
            dist.destroy_process_group()


def full(tensor: Tensor) -> Tensor:
    """The whole tensor of a shard (a collective); any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def assign(target: Tensor, value: Tensor) -> None:
    """Copy the whole `value`, the same on every rank, into `target` or its shard."""
    if isinstance(target, DTensor):
        whole = value.to(target.device, target.dtype)
        value = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(value)


def like(target: Tensor, value: Tensor) -> Tensor:
    """The whole `value`, laid out as `target`."""
    out = torch.zeros_like(target, dtype=value.dtype)
    assign(out, value)
    return out


def _buckets(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > _BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket


def _join(rank: int, size: int, backend: str, timeout: timedelta) -> None:
    """Meet at `MASTER_ADDR:MASTER_PORT`. The first rank listens at that address alone; torch's own server would at all."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = socket.create_server((address, port)) if rank == 0 else None
    descriptor = None if listener is None else listener.detach()
    store = dist.TCPStore(address, port, size, rank == 0, timeout=timeout, master_listen_fd=descriptor)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
