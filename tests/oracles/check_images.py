"""Reads the images of a directory of event files with TensorBoard, and decodes their PNG without Tutti's or zlib's
encoder: the chunks, their CRCs, and all five filters, as the standard (ISO/IEC 15948) has them.

check_images.py DIRECTORY
  {tag: [[step, [height, width, channels], [bytes, channels innermost]], ...]}
"""

import binascii
import json
import struct
import sys
import zlib

from tensorboard.backend.event_processing.plugin_event_accumulator import (
    STORE_EVERYTHING_SIZE_GUIDANCE,
    EventAccumulator,
)
from tensorboard.util import tensor_util

CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}


def chunks(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n", png[:8]
    at = 8
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        data = png[at + 8:at + 8 + length]
        (crc,) = struct.unpack(">I", png[at + 8 + length:at + 12 + length])
        assert crc == binascii.crc32(kind + data), kind
        yield kind, data
        at += 12 + length


def paeth(a, b, c):
    p = a + b - c
    return min(((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c)))[2]


def decode(png):
    parts = list(chunks(png))
    assert parts[0][0] == b"IHDR" and parts[-1] == (b"IEND", b""), [kind for kind, _ in parts]
    width, height, depth, colour, method, filters, interlaced = struct.unpack(">IIBBBBB", parts[0][1])
    assert (depth, method, filters, interlaced) == (8, 0, 0, 0)
    channels = CHANNELS[colour]
    lines = zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT"))
    size = width * channels
    assert len(lines) == height * (size + 1)
    above, pixels = bytearray(size), []
    for row in range(height):
        kind, line = lines[row * (size + 1)], bytearray(lines[row * (size + 1) + 1:(row + 1) * (size + 1)])
        for i in range(size):
            a = line[i - channels] if i >= channels else 0
            c = above[i - channels] if i >= channels else 0
            b = above[i]
            line[i] = (line[i] + (0, a, b, (a + b) // 2, paeth(a, b, c))[kind]) & 255
        pixels += line
        above = line
    return [height, width, channels], pixels


def main(directory):
    accumulator = EventAccumulator(directory, size_guidance=STORE_EVERYTHING_SIZE_GUIDANCE)
    accumulator.Reload()
    images = {}
    for tag, metadata in accumulator.summary_metadata.items():
        if metadata.plugin_data.plugin_name != "images":
            continue
        for event in accumulator.Tensors(tag):
            # Width and height as texts, then one PNG for each image.
            width, height, png = tensor_util.make_ndarray(event.tensor_proto).tolist()
            shape, pixels = decode(png)
            assert [int(height), int(width)] == shape[:2], (height, width, shape)
            images.setdefault(tag, []).append([event.step, shape, pixels])
    print()
    print(json.dumps(images))


if __name__ == "__main__":
    main(sys.argv[1])
