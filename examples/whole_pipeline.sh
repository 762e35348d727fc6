#!/usr/bin/env bash
# Documents → passages → queries → encoder → retriever → scores: a dense retriever without labels, one command a step.
#
#     bash examples/whole_pipeline.sh docs.jsonl google-bert/bert-base-uncased runs/whole
#
# DOCUMENTS is a file or a folder, ENCODER a folder or a Hub name. STEPS, BATCH and LENGTH in the environment change the size. A
# step that is finished is not run again, and a killed one continues. `qontext adapt` decides all of this by itself.
set -euo pipefail
documents=$1 encoder=$2 out=$3
steps=${STEPS:-2000} batch=${BATCH:-32} length=${LENGTH:-144}

# Documents → passages, and five queries for each. The queries of a tenth of the documents are held out.
qontext split "$documents" --max-tokens "$length" --out "$out/passages"
qontext generate "$out/passages" --generator keyphrase --per-passage 5 --out "$out/queries"
qontext holdout "$out/passages" "$out/queries" --out "$out/holdout"
train=$out/holdout/queries test=$out/holdout/measured

# Passages and queries → encoder: CoT-MAE with queries as contexts.
qontext pretrain "$out/passages" --queries "$train" --method cot-mae --context query --encoder "$encoder" \
  --steps "$steps" --batch-size "$batch" --max-tokens "$length" --out "$out/encoder"

# Encoder → retriever: InfoNCE, with negatives that BM25 finds for the queries.
qontext retrieve --bm25 --passages "$out/passages" --queries "$train" --k 50 --out "$out/bm25-train"
qontext mine "$out/bm25-train" "$train" --queries "$train" --passages "$out/passages" --depth 50 --per-query 8 \
  --out "$out/groups"
qontext finetune "$out/groups" --passages "$out/passages" --encoder "$out/encoder" --steps "$steps" \
  --batch-size "$batch" --passages-per-query 4 --passage-length "$length" --out "$out/retriever"

# Retriever → scores, beside BM25 and both together, on the queries that were held out.
qontext encode "$test" --encoder "$out/retriever" --max-length "$length" --out "$out/vectors"
qontext retrieve "$out/vectors" --data "$test" --split generated --k 100 --out "$out/dense"
qontext retrieve --bm25 --data "$test" --split generated --k 100 --out "$out/bm25"
qontext fuse "$out/bm25" "$out/dense" --method minmax --out "$out/both"
for system in bm25 dense both; do
  qontext evaluate "$out/$system" "$test" --split generated --measures "nDCG@10 R@100" --out "$out/$system-scores"
done
qontext compare "bm25=$out/bm25" "dense=$out/dense" "both=$out/both" --qrels "$test" --split generated
