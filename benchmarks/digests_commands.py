"""The commands whose outputs `digests.py` records."""

TRAINING = "--batch-size 4 --log-every 1 --checkpoint-minutes 0 --precision fp32 --device cpu"
PRETRAINING = f"--encoder tiny --tokenizer tokenizer --steps 3 --max-tokens 40 --workers 1 {TRAINING}"
FINETUNING = (
    "finetune mine --passages labeled --encoder pretrain-cot-mae --steps 3 --query-length 12 --passage-length 24 "
    f"--passages-per-query 3 {TRAINING}"
)
COMPUTING = "--precision fp32 --device cpu"

STAGES = {
    "split": "split docs.jsonl --max-tokens 40 --short-span-probability 0.2 --workers 1",
    "split-folder": "split folder --workers 1 --max-tokens 30",
    "split-workers": "split docs.jsonl --max-tokens 40 --short-span-probability 0.2 --workers 2",
    "docset": "docset pydocs:json,email --passages 20 --queries 5",
    "collect": "collect labeled --queries labeled/queries.jsonl --train labeled/qrels/train.tsv",
    "tokenizer": "train-tokenizer split --vocabulary 300",
    "tokens": "tokens split --tokenizer tokenizer --workers 1",
    "generate-keyphrase": "generate split --generator keyphrase --part-passages 16",
    "generate-title": "generate split --generator title",
    "generate-lead": "generate split --generator lead",
    "generate-span": "generate split --generator span",
    "generate-file": "generate split --generator file --queries written.jsonl",
    "train-t5": "train-generator labeled --preset tiny --vocabulary 200 --batch-size 8 --steps 4 --dev-every 2 "
    f"--max-passage-tokens 24 {COMPUTING}",
    "generate-t5": f"generate split --model train-t5 --max-new-tokens 6 {COMPUTING}",
    "train-causal": "train-generator labeled --model llama --batch-size 8 --steps 3 --dev-every 2 "
    f"--max-passage-tokens 24 --max-query-tokens 8 {COMPUTING}",
    "generate-causal": "generate split --generator causal --model train-causal --max-new-tokens 4 --max-passage-tokens 24 "
    f"--per-passage 1 {COMPUTING}",
    "filter-overlap": "filter generate-keyphrase --passages split --by overlap",
    "filter-retrieval": "filter generate-keyphrase --passages split --by retrieval",
    "expand": "expand filter-retrieval --passages split",
    "expand-seen": "expand generate-keyphrase --passages split --words seen",
    "holdout": "holdout split generate-keyphrase --share 0.3",
    "pretrain-mlm": f"pretrain split --method mlm {PRETRAINING}",
    "pretrain-condenser": f"pretrain split --method condenser {PRETRAINING}",
    "pretrain-cocondenser": "pretrain split --method cocondenser --queries generate-keyphrase --condenser-steps 1 "
    f"--context query+rand {PRETRAINING}",
    "pretrain-cot-mae": f"pretrain split --method cot-mae --queries generate-keyphrase --context query {PRETRAINING}",
    "pretrain-cot-mae-near": "pretrain split --method cot-mae --context near+olap+rand --contrastive-weight 0.5 "
    f"--micro-tokens 90 {PRETRAINING}",
    "pretrain-retromae": f"pretrain split --method retromae {PRETRAINING}",
    "pretrain-dupmae": f"pretrain split --method dupmae {PRETRAINING}",
    "pretrain-seed": f"pretrain split --method seed {PRETRAINING}",
    "pretrain-costa": f"pretrain split --method costa {PRETRAINING}",
    "pretrain-simlm": f"pretrain split --method simlm --generator pretrain-mlm {PRETRAINING}",
    "pretrain-bow": f"pretrain split --method bow --target both --queries generate-keyphrase --context query "
    f"--contrastive-weight 0.5 {PRETRAINING}",
    "filter-dense": "filter generate-keyphrase --passages split --by retrieval --retriever pretrain-cot-mae --device cpu",
    "bm25.trec": "retrieve --bm25 --data labeled --split train --k 20",
    "words": "retrieve --bm25 --data labeled --split dev --k 20",
    "mine": "mine bm25.trec labeled/qrels/train.tsv --data labeled --depth 20 --per-query 3",
    "finetune": f"{FINETUNING} --dev labeled --dev-every 2",
    "finetune-cache": f"{FINETUNING} --gradient-cache on --micro-tokens 60",
    "finetune-untied": f"{FINETUNING} --untied",
    "finetune-cosine": f"{FINETUNING} --similarity cosine --pooling mean --dimensions 8",
    "finetune-pair": f"{FINETUNING} --loss pair",
    "finetune-clusters": f"{FINETUNING} --clusters 2",
    "finetune-sparse": f"{FINETUNING} --representation sparse",
    "finetune-tokens": f"{FINETUNING} --representation tokens",
    "finetune-first-tokens": f"{FINETUNING} --representation first-tokens",
    "finetune-matches": f"{FINETUNING} --representation matches",
    "train-reranker": "train-reranker mine --passages labeled --encoder pretrain-cot-mae --steps 3 --candidates 3 "
    f"--max-length 24 {TRAINING}",
    "teacher": "rerank mine --reranker train-reranker --data labeled --device cpu --precision fp32",
    "finetune-kl": f"{FINETUNING} --loss kl --teacher teacher --contrastive-weight 0.2 --teacher-temperature 2",
    "finetune-margin": f"{FINETUNING} --loss margin-mse --teacher teacher --margin-bins 2",
    "finetune-rank": f"{FINETUNING} --loss rank --teacher teacher --contrastive-weight 1",
    "finetune-batch-teacher": f"{FINETUNING} --batch-teacher finetune-tokens",
    "filter-reranker": "filter generate-keyphrase --passages split --by reranker --reranker train-reranker --device cpu",
    "encode": f"encode labeled --encoder finetune {COMPUTING}",
    "encode-queries": f"encode labeled --encoder finetune-untied --kind query {COMPUTING}",
    "encode-windows": f"encode labeled --encoder finetune --window 16 {COMPUTING}",
    "encode-bits": f"encode labeled --encoder finetune --window 16 --tokens {COMPUTING}",
    "encode-sparse": f"encode labeled --encoder finetune-sparse {COMPUTING}",
    "encode-tokens": f"encode labeled --encoder finetune-tokens {COMPUTING}",
    "encode-first-tokens": f"encode labeled --encoder finetune-first-tokens {COMPUTING}",
    "encode-matches": f"encode labeled --encoder finetune-matches {COMPUTING}",
    "index-bm25": "index labeled --backend bm25",
    "index-hnsw": "index encode --backend faiss-hnsw",
    "index-faiss": "index encode --backend faiss --factory SQ8,RFlat",
    "export": "export encode",
    "search": f"retrieve encode --data labeled --split dev --k 20 {COMPUTING}",
    **{
        f"search-{name}": f"retrieve {name} --data labeled --split dev --k 20 {COMPUTING}"
        for name in (
            "index-hnsw", "index-faiss", "encode-windows", "encode-sparse", "encode-tokens",
            "encode-first-tokens", "encode-matches",
        )
    },
    "search-index-bm25": "retrieve index-bm25 --data labeled --split dev --k 20",
    "search-where": f"retrieve encode --data labeled --split dev --k 20 --where lang=de {COMPUTING}",
    "search.trec": f"retrieve encode --data labeled --split dev --k 20 --limit 5 {COMPUTING}",
    "fuse": "fuse search words",
    "fuse-zscore": "fuse search words --method zscore --tune labeled/qrels/dev.tsv",
    "rerank": f"rerank search --reranker train-reranker --data labeled {COMPUTING}",
    "rerank-tokens": f"rerank search --tokens encode-bits --data labeled {COMPUTING}",
    "evaluate": "evaluate rerank labeled --split dev",
    "evaluate-words": "evaluate words labeled --split dev",
    "report": "report evaluate evaluate-words --data labeled",
    "run": "run recipe.toml",
    "adapted": "adapt docs.jsonl --encoder pretrain-cot-mae --budget 10m --yes",
    "search-adapted": "retrieve adapted --data labeled --split dev --k 20",
}  # fmt: skip
"""Name of the output → the command that writes it; in this order, so that later ones read what earlier ones wrote."""

EARLIER = {
    "--loss pair": "--passage-weight 0.1",
    "--loss kl": "--distill kl",
    "--loss margin-mse": "--distill margin-mse",
}
"""Options → what they were called in the first version that was recorded; tried if a command is refused."""

OTHERS = {
    "search adapted question": "search adapted|river mill bread|--json",
    "search encode question": "search encode|river mill bread|--k|3|--json",
    "search bm25 question": "search index-bm25|river mill bread|--where|lang=de|--json",
    "compare": "compare search words --qrels labeled --split dev --json",
    "adapt again": "adapt docs.jsonl --out adapted --encoder pretrain-cot-mae --budget 10m --json",
    "serve": "serve encode --port 0 --dry-run --device cpu --precision fp32 --json",
    "serve adapted": "serve adapted --port 0 --dry-run --device cpu --json",
    "annotate": "annotate split --pairs contexts --queries generate-keyphrase --out study --documents 5 --export --json",
    "recipes": "recipes --json",
    "show": "show finetune --json",
    "show verify": "show encode --verify --json",
    "show adapted": "show adapted --json",
    "demo": "demo folder --out demo --budget 1s --passages 10",
    "index few": "index encode --backend faiss-ivfpq --out refused",
    "rerank without bits": "rerank search --tokens encode --data labeled --out refused",
    "split nothing": "split absent.jsonl --out refused",
    "split without out": "split docs.jsonl",
    "search without out": "retrieve encode --data labeled",
    "search without all": "search",
    "search question and bm25": "search --bm25|encode|what|--k|3",
    "search unknown": "retrieve labeled --data labeled --out refused",
    "generate unknown": "generate split --generator nobody --out refused",
    "pretrain unknown setting": "pretrain split --method mlm --decoder-layers 2 --out refused",
    "finetune teacher": "finetune mine --passages labeled --margin-bins 2 --out refused",
    "run unknown": "run nowhere --out refused",
    "other result": "split docs.jsonl --max-tokens 50 --out split",
    "foreign": "split docs.jsonl --out folder",
    "evaluate without out": "evaluate words labeled --split dev --json",
    "evaluate other split": "evaluate words labeled --split test --out refused",
    "rerank bm25": "rerank words --reranker encode --data labeled --out refused",
}
"""Name → a command whose result or message is recorded; arguments are separated by | if one has spaces."""
