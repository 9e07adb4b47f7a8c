"""Computes metrics with scikit-learn, and with NumPy where that has none, and prints them, as JSON, in full precision.

check_metrics.py FILE   where FILE is JSON with one number per example in "prediction", "label", "relevance", "weight" and
"group", and rows of probabilities in "classes" with the class numbers in "class".
  {"values": {metric: [without weights, with weights], ...},
   "curves": {name of the axis: [without weights, with weights], ...}}
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


def of_curves(data, weights):
    """The points of the exact curves, by ascending threshold."""
    label, prediction = data["label"], data["prediction"]
    precision, recall, thresholds = metrics.precision_recall_curve(label, prediction, sample_weight=weights)
    rate, _, _ = metrics.roc_curve(label, prediction, sample_weight=weights, drop_intermediate=False)
    return {"precision": precision, "recall": recall, "threshold": thresholds, "false_positive_rate": rate[::-1]}


def at_thresholds(data, weights, thresholds):
    """The areas under the ROC and the PR curve through the points of these thresholds."""
    label, prediction = data["label"], data["prediction"]
    points = [(0.0, 0.0, 1.0)]
    for threshold in sorted(thresholds, reverse=True):
        answers = prediction > threshold
        negatives = metrics.recall_score(1 - label, ~answers, sample_weight=weights)
        precision = metrics.precision_score(label, answers, sample_weight=weights)
        points.append((1 - negatives, metrics.recall_score(label, answers, sample_weight=weights), precision))
    points.append((1.0, 1.0, numpy.average(label, weights=weights)))
    rate, recall, precision = numpy.array(points).T
    return metrics.auc(rate, recall), metrics.auc(recall, precision)


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
    base = numpy.full(len(label), numpy.average(label, weights=weights))
    roc_at, pr_at = at_thresholds(data, weights, [0.9, 0.1, 0.35, 0.5])
    return {
        "normalized_entropy": metrics.log_loss(label, prediction, sample_weight=weights)
        / metrics.log_loss(label, base, sample_weight=weights),
        "roc_at": roc_at,
        "pr_at": pr_at,
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
    both = [numpy.ones(len(data["label"])), data["weight"]]
    numbers = [values(data, weights) for weights in both]
    curves = [of_curves(data, weights) for weights in both]
    print(
        json.dumps(
            {
                "values": {name: [float(of[name]) for of in numbers] for name in numbers[0]},
                "curves": {name: [of[name].tolist() for of in curves] for name in curves[0]},
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
