"""The group of processes that torchrun starts; a single process is a group of one.

Every rank processes its share of the batch and has all weights. Losses are shares of the whole batch's, so
gradients are summed. All ranks are global, so several hosts need no special case.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qontext.frame import process
from qontext.models.precision import resolve_device

BUCKET_BYTES = 64 << 20


@dataclass(frozen=True)
class RankGroup:
    """The rank of this process and the number of processes."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """In place: the sum over all ranks."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """[n, …] of each rank → [world · n, …], in the order of the ranks."""
        if self.world == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def sum_gradients(self, module: nn.Module) -> None:
        """Sum the gradients over all ranks, in a few large messages."""
        if self.world == 1:
            return
        bucket: list[Tensor] = []
        for gradient in [p.grad for p in module.parameters() if p.grad is not None]:
            bucket.append(gradient)
            if sum(g.nbytes for g in bucket) >= BUCKET_BYTES:
                self._sum_bucket(bucket)
                bucket = []
        if bucket:
            self._sum_bucket(bucket)

    def _sum_bucket(self, gradients: list[Tensor]) -> None:
        flat = torch.cat([g.flatten().float() for g in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(part.view_as(gradient))

    def any(self, value: bool) -> bool:
        """True if the flag is True on any rank."""
        if self.world == 1:
            return value
        flag = torch.tensor(float(value))  # on the CPU: the processes wait for each other, not for their GPUs
        dist.all_reduce(flag)
        return bool(flag)

    def total(self, value: int) -> int:
        """The sum of the ranks' values."""
        return value if self.world == 1 else int(self.sum(torch.tensor(value)))

    def of_first(self, value: int) -> int:
        """The first rank's value."""
        return int(self.sum(torch.tensor(value if self.is_first else 0)))

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier()


def join(device: str = "auto") -> RankGroup:
    """Join the group in torchrun's environment variables; without them, a group of one process."""
    world, rank = process.world(), process.rank()
    own_device = resolve_device(device)
    if world == 1:
        return RankGroup(0, 1, own_device)
    if own_device.type == "cuda":
        own_device = resolve_device(f"cuda:{process.local_rank() or 0}")
        torch.cuda.set_device(own_device)
    if not dist.is_initialized():
        process.check_meeting_point()
        dist.init_process_group("cpu:gloo,cuda:nccl" if own_device.type == "cuda" else "gloo")
    return RankGroup(rank, world, own_device)
