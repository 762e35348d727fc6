"""Write the tables of figures in docs/results from the JSON files here.

    python benchmarks/page.py

A figure on these pages is thus one that was measured. Text outside of the tables is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
PAGES = [
    RESULTS / f"{name}.md"
    for name in ("performance", "retrieval", "queries", "training", "adapt", "adapt-tables")
]
FIGURE = RESULTS / "figures" / "adapt.svg"
Rows = list[list[str]]


def main() -> None:
    from qontext.evaluation import plots

    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8")), "utf-8")
    figure = plots.intervals(
        ranges(json.loads((HERE / "adapt.json").read_text("utf-8"))), "nDCG@10, mean and range"
    )
    FIGURE.write_bytes(plots.svg_bytes(figure, "adapt", ink="#808080"))


def filled(page: str) -> str:
    """The page with its tables made anew. A table stands between ``<!-- NAME -->`` and ``<!-- end -->``."""
    return re.sub(
        r"(<!-- (\w+) -->\n).*?(<!-- end -->)", lambda m: m[1] + table(m[2]) + m[3], page, flags=re.DOTALL
    )


def table(name: str) -> str:
    content = json.loads((HERE / f"{name}.json").read_text("utf-8"))
    head, *rows = TABLES[name](content)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{machine(content)}\n"


def machine(content: dict[str, Any]) -> str:
    """The machine of the measurement, as a sentence; of several models, one for each."""
    if "models" in content:
        return " ".join(f"{name}: {machine(result)}" for name, result in content["models"].items())
    on = content["machine"]
    units = [unit for unit in ("amx_bf16", "avx512_bf16") if unit in on.get("units", [])]
    versions = ", ".join(f"{name} {version}" for name, version in on["versions"].items())
    place = f"{on['cores']} cores, {on['processor']}, {' and '.join(units) or 'no bf16 units'}"
    return f"{place}; {versions}." if versions else f"{place}."


def pretrain(content: dict[str, Any]) -> Rows:
    head = [
        "method",
        "encoder",
        "format",
        "pairs/s",
        "the plain way",
        "ratio",
        "against the plain way in fp32",
        "against ours in fp32",
    ]
    return [head] + [
        [
            row["method"], row["preset"], row["format"], f"{row['ours pairs/s']:.1f}", f"{row['plain pairs/s']:.1f}",
            f"{row['ratio']:.1f}", f"{row['ratio to the plain way in fp32']:.1f}", f"{row['ratio to ours in fp32']:.2f}",
        ]
        for row in content["rows"]
    ]  # fmt: skip


def contexts(content: dict[str, Any]) -> Rows:
    rows = [["method", "contexts", "pairs/s", "ratio to passages"]]
    for row in content["rows"]:
        method = f"{row['method']}, {row['decoder']} decoder" if "decoder" in row else row["method"]
        context = "queries" if row["context"] == "query" else f"passages ({row['context']})"
        rows.append([method, context, f"{row['pairs/s']:.1f}", f"{row['ratio to passages']:.2f}"])
    return rows


def methods(content: dict[str, Any]) -> Rows:
    return [["method", "a step"]] + [[row["method"], f"{row['relative']:.2f}"] for row in content["rows"]]


def finetune(content: dict[str, Any]) -> Rows:
    losses = {"MultipleNegativesRankingLoss": "plain", "CachedMultipleNegativesRankingLoss": "cached"}
    head = ["longest passage", "loss", "format", "pairs/s", content["baseline"].split(",")[0], "ratio"]
    return [head] + [
        [
            f"{row['passage length']} tokens", losses[row["baseline's loss"]], row["format"],
            f"{row['qontext pairs/s']:.1f}", f"{row['sentence_transformers pairs/s']:.1f}", f"{row['ratio']:.2f}",
        ]
        for row in content["rows"]
    ]  # fmt: skip


def encode(content: dict[str, Any]) -> Rows:
    rows = [["model", "program", "tokens/s", "ratio", "least cosine to the baseline"]]
    for model, result in content["models"].items():
        base = result["baseline"].split(" encode")[0]
        for name, speed in result["tokens_per_second"].items():
            ratio, cosine = result["speedup"].get(name, 1.0), result["least_cosine"][name]
            shown = base if name == "sentence_transformers" else name.replace("_", " ")
            rows.append([model, shown, f"{speed:,}", f"{ratio:.2f}", f"{cosine:.5f}"])
    return rows


def search(content: dict[str, Any]) -> Rows:
    rows = [["vectors", "program", "seconds", "ratio", "same results"]]
    for size in content["sizes"]:
        for name, seconds in size["median_seconds"].items():
            ratio, same = size["speedup"].get(name, 1.0), size["same_top_k"][name]
            shown = content["baseline"].split(",")[0] if name == "faiss_flat" else name.replace("_", " ")
            rows.append(
                [f"{size['passages']:,}", shown, f"{seconds:.2f}", f"{ratio:.2f}", f"{100 * same:.1f} %"]
            )
    return rows


def serve(content: dict[str, Any]) -> Rows:
    shown = {
        "qontext": "Qontext, vectors",
        "qontext_bm25": "Qontext, BM25",
        "fastapi_sentence_transformers": "sentence-transformers in plain FastAPI",
    }
    rows = [["server", "clients", "answers/s", "p50", "p95", "p99", "failed"]]
    for name, title in shown.items():
        for clients, load in content[name].items():
            times = [f"{load[part]:.0f} ms" for part in ("p50", "p95", "p99")]
            failed = sum(count for status, count in load["statuses"].items() if status != "200")
            rows.append([title, clients, f"{load['answers_per_second']:.0f}", *times, str(failed)])
    return rows


def growth(content: dict[str, Any]) -> Rows:
    """Hours are extrapolated from the seconds that each further passage took between the two largest sizes."""
    sizes = sorted({row["passages"] for row in content["rows"]})
    by_size = {size: {r["stage"]: r for r in content["rows"] if r["passages"] == size} for size in sizes}
    few, many = sizes[-2:]
    head = ["stage", *(f"s, {size:,}" for size in sizes), *(f"MiB, {size:,}" for size in sizes)]
    rows = [[*head, f"MB on disk, {many:,}", "h, 100 million"]]
    for stage, large in by_size[many].items():
        stages = [by_size[size][stage] for size in sizes]
        each = (large["seconds"] - by_size[few][stage]["seconds"]) / (many - few)
        hours = "" if stage.startswith("search") else f"{each * 1e8 / 3600:.1f}"
        seconds, memory = [f"{row['seconds']:.1f}" for row in stages], [f"{row['mib']:,}" for row in stages]
        rows.append([stage, *seconds, *memory, f"{large['megabytes']:.1f}", hours])
    return rows


def encoders(content: dict[str, Any]) -> Rows:
    columns = {
        "alone": "nDCG@10",
        "with_bm25": "with BM25",
        "equal_weights": "equally",
        "reciprocal_ranks": "by ranks",
    }
    rows = [["set", "questions", "encoder", *columns.values()]]
    for row in sorted(content["rows"], key=lambda row: row["set"]):
        scores = [f"{row[name]:.3f}".lstrip("0") if name in row else "" for name in columns]
        rows.append([row["set"], f"{row['questions']:,}", row["encoder"], *scores])
    return rows


def representations(content: dict[str, Any]) -> Rows:
    rows = [["fine-tuned as", "a training step", "texts/s encoded", "bytes per passage", "questions/s"]]
    for row in content["rows"]:
        cells = [row["case"], f"{row['relative_step']:.2f}"]
        if "texts_per_second" in row:
            rates = row["texts_per_second"], row["bytes_per_passage"], row["questions_per_second"]
            cells += [f"{rate:,.0f}" for rate in rates]
        rows.append([*cells, *[""] * (len(rows[0]) - len(cells))])
    return rows


def expansion(content: dict[str, Any]) -> Rows:
    rows = [["set", "words appended", "nDCG@10", "p"]]
    for row in content["rows"]:
        p = "" if row["p"] is None else _p(row["p"])
        rows.append([row["set"], row["words"], f"{row['nDCG@10']:.3f}".lstrip("0"), p])
    return rows


def _p(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


SYSTEMS = {
    "bm25": "BM25",
    "start": "MiniLM",
    "adapted": "MiniLM adapted",
    "hybrid-start": "BM25 + MiniLM",
    "hybrid": "BM25 + adapted",
    "tokens-start": "BM25 + MiniLM + tokens",
    "tokens": "BM25 + adapted + tokens",
}
SETS = {
    "fairytaleqa": "FairytaleQA",
    "cosqa": "CoSQA",
    "scifact": "SciFact",
    "dl19_small": "TREC DL 2019",
    "codebase": "source code",
    "medquad": "MedQuAD",
    "squad_pool": "SQuAD",
    "squadshifts_wiki_pool": "SQuADShifts",
    "nfcorpus": "NFCorpus",
    "xquad_de": "XQuAD, German",
    "xquad_es": "XQuAD, Spanish",
    "xquad_zh": "XQuAD, Chinese",
}


def adapt(content: dict[str, Any]) -> Rows:
    """nDCG@10 of every system, then what the recommendation gains over BM25 + MiniLM, and its regret."""
    of = {name: content["sets"][name] for name in SETS if name in content["sets"]}
    rows = [["", *(SETS[name] for name in of), "mean"]]
    for system, title in SYSTEMS.items():
        means = [row["test"][system] for row in of.values()]
        cells = [
            _score(mean, bold=mean == max(row["test"].values())) for mean, row in zip(means, of.values())
        ]
        rows.append([title, *cells, _score(content["mean"]["test"][system])])
    gains = [f"{row['gain']['mean']:+.3f}{'*' if row['gain']['p'] < 0.05 else ''}" for row in of.values()]
    mean_gain = content["mean"]["recommended"] - content["mean"]["test"]["hybrid-start"]
    rows.append(["recommended without labels, minus BM25 + MiniLM", *gains, f"{mean_gain:+.3f}"])
    for system in ("bm25", "start"):
        changes = [row["test"][row["recommended"]] - row["test"][system] for row in of.values()]
        shown = [f"{change:+.3f}" for change in (*changes, sum(changes) / len(changes))]
        rows.append([f"… minus {SYSTEMS[system]} (not tested)", *shown])
    for number in ("0", "30", "100"):
        cells = [_score(row["regret"][number]) if number in row["regret"] else "–" for row in of.values()]
        name = f"regret with {number} labeled questions" if number != "0" else "regret without labels"
        rows.append([name, *cells, _score(content["mean"]["regret"][number])])
    return rows


def adapt_encoders(content: dict[str, Any]) -> Rows:
    """nDCG@10 of every system with other encoders."""
    titles = {name: title.replace("MiniLM", "encoder") for name, title in SYSTEMS.items()}
    rows = [["set", "encoder", *titles.values()]]
    for name, title in SETS.items():
        for model, result in content["models"].items():
            if scores := result["sets"].get(name, {}).get("test"):
                best = max(scores.values())
                cells = [_score(scores[system], bold=scores[system] == best) for system in titles]
                rows.append([title, model, *cells])
    return rows


def adapt_whole(content: dict[str, Any]) -> Rows:
    """All measures of every system on whole sets, and the p of its difference from the recommended one."""
    sets = content["sets"]
    measures = list(next(iter(next(iter(sets.values()))["measures"].values())))
    rows = [["", *(f"{SETS[name]}: {measure}" for name in sets for measure in (*measures, "p"))]]
    for system, title in SYSTEMS.items():
        cells = []
        for row in sets.values():
            best = {m: max(of[m] for of in row["measures"].values()) for m in measures}
            own, p = row["measures"][system], row["recommended against"][system]["p"]
            cells += [_score(own[m], bold=own[m] == best[m]) for m in measures]
            cells.append("" if system == row["recommended"] else "< .001" if p < 0.001 else f"{p:.3f}"[1:])
        rows.append([title, *cells])
    for number in ("0", "30", "100", "300"):
        name = f"regret after {number} judgments" if number != "0" else "regret without labels"
        regrets = [(row["regret"] if number == "0" else row["judged"]).get(number) for row in sets.values()]
        empty = [""] * len(measures)
        rows.append(
            [name, *(c for regret in regrets for c in ("–" if regret is None else _score(regret), *empty))]
        )
    return rows


def ranges(content: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """System → its mean nDCG@10 over the sets, the least and the greatest."""
    means = {s: [of["test"][s] for of in content["sets"].values()] for s in SYSTEMS}
    return {SYSTEMS[s]: (sum(m) / len(m), min(m), max(m)) for s, m in means.items()}


def _score(value: float, *, bold: bool = False) -> str:
    text = f"{value:.3f}".removeprefix("0")
    return f"**{text}**" if bold else text


TABLES: dict[str, Callable[[dict[str, Any]], Rows]] = {
    "pretrain": pretrain,
    "contexts": contexts,
    "methods": methods,
    "finetune": finetune,
    "encode": encode,
    "search": search,
    "serve": serve,
    "encoders": encoders,
    "representations": representations,
    "expansion": expansion,
    "growth": growth,
    "adapt": adapt,
    "adapt_encoders": adapt_encoders,
    "adapt_whole": adapt_whole,
}

if __name__ == "__main__":
    main()
