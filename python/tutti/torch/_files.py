"""The files of checkpoints: safetensors, and a manifest that is written last."""

from __future__ import annotations

import ctypes
import json
import math
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import torch

from .._library import library
from ..errors import DataLoss, InvalidArgument, Unimplemented
from ..lanes import crc32c
from ._tensors import Tensor

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: kind for kind, name in _NAMES.items()}
_MANIFEST = "manifest.json"


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, which has to outlive it."""
    if tensor.numel() == 0:
        return memoryview(b"")
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _write(path: pathlib.Path, pieces: Iterable[bytes | memoryview]) -> tuple[int, int]:
    """Returns the number of bytes and their checksum, when they are on the device."""
    size = checksum = 0
    with open(path, "wb") as file:
        for piece in pieces:
            file.write(piece)
            size, checksum = size + len(piece), crc32c(piece, checksum)
        file.flush()
        os.fsync(file.fileno())
    return size, checksum


def sync(directory: pathlib.Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_part(
    folder: pathlib.Path, part: str, tensors: dict[str, Tensor], step: int, tied: dict[str, str]
) -> dict[str, Any]:
    metadata = {"format": "pt", "step": str(step)}
    if tied:
        metadata["tutti_tied"] = json.dumps(tied)
    header: dict[str, Any] = {"__metadata__": metadata}
    in_order = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    plain, at = [], 0
    for name, tensor in in_order:
        if name == "__metadata__":
            raise InvalidArgument("safetensors files reserve the name '__metadata__'")
        if tensor.dtype not in _NAMES:
            raise InvalidArgument(f"'{name}' has the type {tensor.dtype}, which safetensors files do not support")
        each = tensor.detach().cpu().contiguous()
        end = at + each.numel() * each.element_size()
        header[name] = {"dtype": _NAMES[each.dtype], "shape": list(each.shape), "data_offsets": [at, end]}
        at = end
        plain.append(each)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    name = f"{part}.safetensors"
    pieces: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text, *map(bytes_of, plain)]
    size, checksum = _write(folder / name, pieces)
    return {"name": name, "part": part, "bytes": size, "crc32c": checksum}


def readable(value: Any) -> Any:
    """The value as JSON has it; what JSON has not, as text."""
    if isinstance(value, dict):
        return {str(key): readable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(each) for each in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def write_manifest(
    folder: pathlib.Path, step: int, sequence: int, files: list[dict[str, Any]], state: dict[str, Any]
) -> None:
    """The first line has the checksum of the rest."""
    manifest = {
        "format": 1,
        "step": step,
        "sequence": sequence,
        "tutti_version": library.tutti_version().decode(),
        "libtorch_version": str(torch.__version__),
        "files": files,
        "state": state,
    }
    rest = json.dumps(manifest, indent=2)[1:] + "\n"
    _write(folder / _MANIFEST, [(_first_line(rest.encode()) + rest).encode()])


def _first_line(rest: bytes) -> str:
    return f'{{\n  "checksum": "crc32c:{crc32c(rest):08x}",'


def verify(folder: pathlib.Path, file: dict[str, Any]) -> bytearray:
    """The bytes of a file, if they are those that were written."""
    if "/" in file["name"]:
        raise DataLoss(f"{folder}: '{file['name']}' is not the name of a file in this folder")
    path = folder / file["name"]
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise DataLoss(f"{path}: {error.strerror}") from error
    if len(data) != file["bytes"]:
        raise DataLoss(f"{path}: the file has {len(data)} bytes, but {file['bytes']} were written")
    if crc32c(data) != file["crc32c"]:
        raise DataLoss(f"{path}: the checksum of the file is not that of the data that were written")
    return data


def read_part(folder: pathlib.Path, file: dict[str, Any]) -> dict[str, Tensor]:
    data = verify(folder, file)
    length = int.from_bytes(data[:8], "little")
    try:
        header: dict[str, Any] = json.loads(data[8 : 8 + length])
        return {n: _tensor_of(data, 8 + length, about) for n, about in header.items() if n != "__metadata__"}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataLoss(f"{folder / file['name']} is no safetensors file that Tutti has written: {error!r}") from error


def _tensor_of(data: bytearray, start: int, about: dict[str, Any]) -> Tensor:
    begin, end = about["data_offsets"]
    kind = _TYPES[about["dtype"]]
    flat = torch.empty(0, dtype=kind)
    if end > begin:
        flat = torch.frombuffer(data, dtype=kind, count=(end - begin) // flat.element_size(), offset=start + begin)
    return flat.view(about["shape"])


def manifest_of(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        inside = " It has checkpoints: give one of them, such as latest" if folders_in(folder) else ""
        raise DataLoss(f"{path}: {error.strerror}.{inside}") from error
    line = len(_first_line(b""))
    if text[:line] != _first_line(text[line:]).encode():
        raise DataLoss(f"{path}: the checksum does not match the text; the file is damaged or was edited")
    try:
        manifest: dict[str, Any] = json.loads(text)
        _ = int(manifest["step"]), int(manifest["sequence"]), manifest["state"]
        _ = [
            (str(file["name"]), str(file["part"]), int(file["bytes"]), int(file["crc32c"]))
            for file in manifest["files"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataLoss(f"{path} is not the manifest of a checkpoint: {error!r}") from error
    if manifest.get("format") != 1:
        raise Unimplemented(f"{path}: the checkpoint has format {manifest.get('format')}; this version reads format 1")
    return manifest


def folders_in(directory: pathlib.Path) -> list[pathlib.Path]:
    """The checkpoints, damaged ones as well."""
    return [each for each in directory.glob("ckpt-*") if each.name[5:].removesuffix(".replaced").isdecimal()]


def sequence_of(folder: pathlib.Path) -> int:
    """The number of a save in its directory; -1 if its manifest is damaged."""
    try:
        return int(manifest_of(folder)["sequence"])
    except (DataLoss, Unimplemented):
        return -1


def point_latest_to(directory: pathlib.Path, name: str) -> None:
    fresh = directory / f".latest-{os.getpid()}"
    try:
        fresh.symlink_to(name)
        fresh.replace(directory / "latest")
    except OSError:
        fresh.unlink(missing_ok=True)  # some file systems have no links, and nobody here reads it
