"""Computes metrics with scikit-learn and prints them, as JSON, in full precision.

check_metrics.py FILE   where FILE is JSON with one number per example in "prediction", "label", "relevance", "weight" and
"group", and rows of probabilities in "classes" with the class numbers in "class".
  {metric: [without weights, with weights], ...}
"""

import json
import sys

import numpy
from sklearn import metrics


def of_groups(data, weights, value):
    """The value and the weight of each group that has one."""
    found = []
    for group in numpy.unique(data["group"]):
        rows = (data["group"] == group) & (weights > 0)
        one = value(rows)
        if one is not None:
            found.append((one, weights[rows].sum()))
    return numpy.array(found).T


def values(data, weights):
    label, prediction, relevance = data["label"], data["prediction"], data["relevance"]
    answers = prediction > 0.5

    def area(rows):
        if len(set(label[rows])) < 2:
            return None
        return metrics.roc_auc_score(label[rows], prediction[rows], sample_weight=weights[rows])

    def ndcg(k, gain):
        def of_rows(rows):
            gains = weights[rows] * gain(relevance[rows])
            if rows.sum() < 2 or not gains.any():
                return None
            return metrics.ndcg_score([gains], [prediction[rows]], k=k)

        return of_groups(data, weights, of_rows)[0].mean()

    areas, sizes = of_groups(data, weights, area)
    return {
        "accuracy": metrics.accuracy_score(label, answers, sample_weight=weights),
        "precision": metrics.precision_score(label, answers, sample_weight=weights),
        "recall": metrics.recall_score(label, answers, sample_weight=weights),
        "auc": metrics.roc_auc_score(label, prediction, sample_weight=weights),
        "average_precision": metrics.average_precision_score(label, prediction, sample_weight=weights),
        "log_loss": metrics.log_loss(label, prediction, sample_weight=weights),
        "classes": metrics.log_loss(data["class"], data["classes"], sample_weight=weights),
        "class": metrics.accuracy_score(data["class"], data["classes"].argmax(1), sample_weight=weights),
        "calibration": numpy.average(prediction, weights=weights) / numpy.average(label, weights=weights),
        "group_auc": numpy.average(areas, weights=sizes),
        "by_groups": areas.mean(),
        "ndcg": ndcg(None, lambda relevance: relevance),
        "ndcg@3": ndcg(3, lambda relevance: 2**relevance - 1),
        "mse": metrics.mean_squared_error(label, prediction, sample_weight=weights),
        "rmse": metrics.mean_squared_error(label, prediction, sample_weight=weights) ** 0.5,
        "mean": numpy.average(prediction, weights=weights),
    }


def main(path):
    with open(path) as file:
        data = {name: numpy.array(column) for name, column in json.load(file).items()}
    without = values(data, numpy.ones(len(data["label"])))
    weighted = values(data, data["weight"])
    print(json.dumps({name: [float(without[name]), float(weighted[name])] for name in without}))


if __name__ == "__main__":
    main(sys.argv[1])
