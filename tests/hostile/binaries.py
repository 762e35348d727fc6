"""Damage inside what verbs write: tables in Parquet, arrays, models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.hostile.files import Damage, copied
from tests.hostile.runner import EITHER, REFUSE
from tests.hostile.texts import Table


def _table(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Change the rows of the first Parquet file."""

    def damage(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        file = next(iter(sorted(target.glob("*.parquet")))) if target.is_dir() else target
        pq.write_table(change(pq.read_table(file)), file)
        return str(target)

    return damage


def _column(number: int, change: Callable[[pa.Table, str], pa.Array | None]) -> Damage:
    def damaged(table: pa.Table) -> pa.Table:
        name = table.column_names[number % table.num_columns]
        array = change(table, name)
        place = table.column_names.index(name)
        return table.remove_column(place) if array is None else table.set_column(place, name, array)

    return _table(damaged)


def _parquet() -> Iterator[tuple[str, tuple[Damage, str]]]:
    for n in range(5):
        yield f"column-{n}-null", (_column(n, lambda t, c: pa.nulls(len(t), t.schema.field(c).type)), EITHER)
        yield f"column-{n}-half-null", (_column(n, _half_null), EITHER)
        yield f"column-{n}-missing", (_column(n, lambda t, c: None), EITHER)
        yield f"column-{n}-of-lists", (_column(n, lambda t, c: pa.array([[[1]]] * len(t))), EITHER)
        yield f"column-{n}-of-booleans", (_column(n, lambda t, c: pa.array([True] * len(t))), EITHER)
        yield f"column-{n}-of-nothing", (_column(n, lambda t, c: pa.nulls(len(t))), EITHER)
    yield "no-rows", (_table(lambda table: table.slice(0, 0)), REFUSE)
    yield "no-columns", (_table(lambda table: table.select([])), REFUSE)
    yield "rows-twice", (_table(lambda table: pa.concat_tables([table, table])), EITHER)
    yield "id-spaces", (_column(0, lambda t, c: pa.array([f"a b\t{n}" for n in range(len(t))])), EITHER)
    yield "id-empty", (_column(0, lambda t, c: pa.array([""] * len(t))), EITHER)


def _half_null(table: pa.Table, name: str) -> pa.Array:
    values = table[name].to_pylist()
    return pa.array([v if n % 2 else None for n, v in enumerate(values)], table.schema.field(name).type)


PARQUET: Table = dict(_parquet())


def _array(change: Callable[[Any], Any]) -> Damage:
    def damage(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        file = max(target.rglob("*.npy"), key=lambda path: path.stat().st_size)
        np.save(file, change(np.load(file)), allow_pickle=True)
        return str(target)

    return damage


ARRAYS: Table = {
    "array-wider": (_array(lambda a: np.concatenate([a, a], -1)), REFUSE),
    "array-shorter": (_array(lambda a: a[:-1]), REFUSE),
    "array-longer": (_array(lambda a: np.concatenate([a, a])), REFUSE),
    "array-empty": (_array(lambda a: a[:0]), REFUSE),
    "array-flat": (_array(lambda a: a.reshape(-1)[:7]), REFUSE),
    "array-of-objects": (_array(lambda a: a.astype(object)), REFUSE),
    "array-of-text": (_array(lambda a: a.astype(str)), REFUSE),
    "array-of-doubles": (_array(lambda a: a.astype("float64")), EITHER),
    "array-other-end": (_array(lambda a: a.astype(a.dtype.newbyteorder(">"))), EITHER),
    "array-of-nan": (_array(lambda a: np.full_like(a, -1 if a.dtype.kind in "iu" else np.nan)), REFUSE),
}


def _model_json(name: str, content: bytes) -> Damage:
    def damage(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        (target / name).write_bytes(content)
        return str(target)

    return damage


def _setting(name: str, value: Any) -> Damage:
    def damage(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        config = json.loads((target / "config.json").read_text())
        key = next((key for key in name.split("|") if key in config), name.split("|")[0])
        (target / "config.json").write_text(json.dumps({**config, key: value}))
        return str(target)

    return damage


def _without(name: str) -> Damage:
    def damage(valid: Path, folder: Path) -> str:
        target = copied(valid, folder)
        (target / name).unlink(missing_ok=True)
        return str(target)

    return damage


def _weights(valid: Path, folder: Path) -> str:
    """Weights that are no numbers."""
    import torch
    from safetensors.torch import load_file, save_file

    target = copied(valid, folder)
    file = target / "model.safetensors"
    weights = {name: torch.full_like(w, float("nan")) for name, w in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    return str(target)


def _models() -> Iterator[tuple[str, tuple[Damage, str]]]:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        for kind, content in {
            "empty": b"",
            "garbage": b"\xff\x00{",
            "array": b"[]",
            "deep": b"[" * 50_000,
        }.items():
            yield f"{name}-{kind}", (_model_json(name, content), REFUSE)
        yield f"{name}-missing", (_without(name), EITHER if "_config" in name else REFUSE)
    sizes = (
        "hidden_size|d_model",
        "num_hidden_layers|num_layers",
        "vocab_size",
        "num_attention_heads|num_heads",
    )
    for name in sizes:
        for kind, value in {"zero": 0, "negative": -1, "huge": 10**15, "text": "many", "null": None}.items():
            yield f"{name.partition('|')[0]}-{kind}", (_setting(name, value), REFUSE)
    yield "type-unknown", (_setting("model_type", "dance"), REFUSE)
    yield "code", (_setting("auto_map", {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}), EITHER)
    yield "weights-missing", (_without("model.safetensors"), REFUSE)
    yield "weights-of-nan", (_weights, REFUSE)
    header = (2**62).to_bytes(8, "little")
    yield "weights-header", (_model_json("model.safetensors", header + b"{}"), REFUSE)


MODELS: Table = dict(_models())
