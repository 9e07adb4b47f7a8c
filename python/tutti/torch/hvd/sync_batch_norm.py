"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import InvalidArgument
from .gradients import allreduce
from .operations import Sum
from .ranks import size

Tensor = torch.Tensor


class SyncBatchNorm(_BatchNorm):
    """Like torch.nn.BatchNorm1d, 2d and 3d, with the same arguments, but normalises by the mean and the variance of the
    batches of all ranks together, which may differ in size. Its gradients are those of the sum over the ranks."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgument(f"SyncBatchNorm needs an input with at least two dimensions; got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if size() == 1 or (not self.training and self.track_running_stats):
            return super().forward(input)
        kept = [1, -1] + [1] * (input.dim() - 2)
        others = [dim for dim in range(input.dim()) if dim != 1]
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        own_count = values.new_tensor([values.numel() / values.shape[1]])
        sums = allreduce(torch.cat([values.sum(others), own_count]), op=Sum, name="batch_norm.mean")
        count = sums[-1].item()
        centered = values - (sums[:-1] / count).view(kept)
        variance = allreduce(centered.square().sum(others), op=Sum, name="batch_norm.variance") / count
        if self.training and self.track_running_stats:
            self._update(sums[:-1].detach() / count, variance.detach(), count)
        result = centered * torch.rsqrt(variance + self.eps).view(kept)
        if self.affine:
            result = result * self.weight.view(kept) + self.bias.view(kept)
        return result.to(input.dtype)

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((variance * (count / max(count - 1, 1))).to(self.running_var.dtype), share)
