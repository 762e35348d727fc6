"""Test questions about the same story, article or topic. They are no independent draws: differences are tested over them.

    python evidence/clusters.py --data DATA

writes clusters.json from the labeled sets in DATA: for each set, numbers of clusters with how many questions follow one
another in each. A question belongs to the title of its first relevant passage.
"""

from __future__ import annotations

import argparse
import itertools
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from sets import part_of
from study import POOL, SCALES

from qontext.data.collection import load_collection

FILE = Path(__file__).with_suffix(".json")
Ints = NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    found = {}
    with TemporaryDirectory() as parts:
        for name in POOL:
            for share in sorted({scale.share for scale in SCALES.values()}):
                folder = options.data / name
                if share > 1:
                    folder = part_of(folder, share, Path(parts) / f"{name}-{share}")
                found[f"{name}/{share}"] = runs(folder)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in found.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", "utf-8")


def runs(data: Path) -> list[tuple[int, int]]:
    """(cluster, questions in a row) of the test split, in the order of the judgments."""
    collection = load_collection(data)
    title_of = {passage.id: passage.title or passage.doc for passage in collection.passages()}
    titles = [title_of[max(judged, key=judged.__getitem__)] for judged in collection.qrels("test").values()]
    numbers = {title: number for number, title in enumerate(dict.fromkeys(titles))}
    return [(numbers[title], len(list(group))) for title, group in itertools.groupby(titles)]


@cache
def clusters_of(place: str, questions: int) -> Ints:
    """[Q] the cluster of each question of a place, as tables name it; each its own, where none is known."""
    name = place.rpartition("/")[2].rpartition(" ")[2]
    for key, rows in json.loads(FILE.read_text("utf-8")).items():
        numbers, lengths = np.array(rows).T
        if key.partition("/")[0] == name and lengths.sum() == questions:
            return np.repeat(numbers, lengths)
    return np.arange(questions)


if __name__ == "__main__":
    main()
