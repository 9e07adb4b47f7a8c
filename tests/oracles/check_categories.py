"""Reads a CSV file with Python's csv and prints, as JSON, the bucket of each text but those of the first column.

check_categories.py FILE BUCKETS     [[bucket, ...] of each row]; -1 for an empty text
"""

import csv
import json
import sys

import xxhash

path, buckets = sys.argv[1], int(sys.argv[2])


def bucket_of(text):
    text = text.strip(" \t")
    return xxhash.xxh64(text.encode()).intdigest() % buckets if text else -1


with open(path, newline="", encoding="utf-8") as file:
    rows = list(csv.reader(file))
print(json.dumps([[bucket_of(text) for text in row[1:]] for row in rows[1:]]))
