"""Reads a directory of event files with TensorBoard and prints, as JSON, what a user would see there.

check_events.py DIRECTORY
  {"scalars": {tag: [[step, value], ...]}, "texts": {tag: [[step, text], ...]},
   "histograms": {tag: [[step, [[left, right, count], ...]], ...]}, "versions": [...], "starts": [...],
   "pr_curves": {tag: [[step, what the page shows: precision, recall, thresholds, true_positives, ...], ...]}}
"""

import glob
import json
import os
import sys

from tensorboard.backend.event_processing.plugin_event_accumulator import (
    STORE_EVERYTHING_SIZE_GUIDANCE,
    EventAccumulator,
)
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, LegacyEventFileLoader
from tensorboard.plugins.pr_curve.pr_curves_plugin import PrCurvesPlugin
from tensorboard.util import tensor_util


def tensors(accumulator, plugin):
    """What TensorBoard's pages ask for: every summary comes to them as a tensor of a plugin."""
    tags = accumulator.summary_metadata
    return {
        tag: [(event.step, tensor_util.make_ndarray(event.tensor_proto)) for event in accumulator.Tensors(tag)]
        for tag, metadata in tags.items()
        if metadata.plugin_data.plugin_name == plugin
    }


def main(directory):
    files = sorted(glob.glob(os.path.join(directory, "events.out.tfevents.*")))
    # Every record of every file, so that a broken checksum shows: the loader raises on one.
    versions, starts = [], []
    for path in files:
        for event in LegacyEventFileLoader(path).Load():
            if event.HasField("file_version"):
                versions.append(event.file_version)
            if event.HasField("session_log") and event.session_log.status == 1:
                starts.append(event.step)
        list(EventFileLoader(path).Load())
    accumulator = EventAccumulator(directory, size_guidance=STORE_EVERYTHING_SIZE_GUIDANCE)
    accumulator.Reload()
    scalars = tensors(accumulator, "scalars")
    histograms = tensors(accumulator, "histograms")
    texts = tensors(accumulator, "text")
    curves = tensors(accumulator, "pr_curves")
    entry = PrCurvesPlugin._make_pr_entry  # uses nothing of the plugin
    print(json.dumps({
        "versions": versions,
        "starts": starts,
        "scalars": {tag: [[step, float(value)] for step, value in points] for tag, points in scalars.items()},
        "histograms": {tag: [[step, value.tolist()] for step, value in points] for tag, points in histograms.items()},
        "pr_curves": {tag: [[step, entry(None, step, 0, value)] for step, value in points]
                      for tag, points in curves.items()},
        "texts": {tag: [[step, [t.decode() for t in value.reshape(-1).tolist()]] for step, value in points]
                  for tag, points in texts.items()},
    }))


if __name__ == "__main__":
    main(sys.argv[1])
