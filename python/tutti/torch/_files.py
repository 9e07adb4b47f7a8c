"""The files of checkpoints: safetensors, and a manifest that is written last."""

from __future__ import annotations

import ctypes
import json
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
    if len(data) != file["bytes"] or crc32c(data) != file["crc32c"]:
        raise DataLoss(f"{path}: {len(data)} bytes are not the {file['bytes']} that were written")
    return data


def read_part(folder: pathlib.Path, file: dict[str, Any]) -> dict[str, Tensor]:
    data = verify(folder, file)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        kind = _TYPES[about["dtype"]]
        flat = torch.empty(0, dtype=kind)
        if end > begin:
            count = (end - begin) // flat.element_size()
            flat = torch.frombuffer(data, dtype=kind, count=count, offset=8 + length + begin)
        tensors[name] = flat.view(about["shape"])
    return tensors


def manifest_of(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataLoss(f"{path}: {error.strerror}") from error
    line = len(_first_line(b""))
    if text[:line] != _first_line(text[line:]).encode():
        raise DataLoss(f"{path}: the checksum does not match the text; the file is damaged or was edited")
    manifest: dict[str, Any] = json.loads(text)
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
