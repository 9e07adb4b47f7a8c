"""The area under the ROC curve with scikit-learn, on one core.

    python3 metrics.py float32|float64 FOLDER
"""
import os
import resource
import sys
import time

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
import numpy as np
from sklearn.metrics import roc_auc_score

kind, folder = sys.argv[1:]
scores = np.fromfile(f"{folder}/{kind}", dtype=kind)
labels = np.fromfile(f"{folder}/labels", dtype="int64")
begin = time.perf_counter()
value = roc_auc_score(labels, scores)
seconds = time.perf_counter() - begin
with open(f"{folder}/sklearn-{kind}.value", "w") as file:
    file.write(repr(float(value)))
print(len(scores) / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
