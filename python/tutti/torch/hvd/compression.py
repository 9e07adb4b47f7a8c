"""How gradients are made smaller before they are sent. A class with the same two methods can take their place."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


class Compressor:
    """Makes a tensor smaller, and restores it from the result and a context."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        dtype = tensor.dtype
        return (tensor.to(torch.float16) if dtype.is_floating_point else tensor), dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.to(ctx) if ctx.is_floating_point else tensor


class Compression:
    """The compressors: `none` sends tensors as they are, `fp16` sends floating-point tensors as float16. A class with
    the static methods `compress(tensor)` and `decompress(tensor, ctx)` can take their place."""

    none = NoneCompressor
    fp16 = FP16Compressor
