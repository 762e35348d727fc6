"""The claims of the papers, as differences between arms of the first study, and what else may decide these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """The claim of a paper, as differences that must be positive: (baseline, candidate) arms, at numbers of labels.

    `published` is the paper's difference in points, of retriever 1 where stages are not compared, in the same measure;
    `faults` name what else may decide the differences here, by the keys of `FAULTS`."""

    text: str
    place: str
    pairs: tuple[tuple[str, str], ...]
    published: float | None = None
    faults: tuple[str, ...] = ()
    measure: str = "MRR@10"


FAULTS = {
    "titles": "keyphrases carry the passage's title, passages and random spans do not, and at test time every passage "
    "begins with it",
    "directions": "the start's vectors share a few large directions that hide what it knows, and a contrastive loss removes "
    "these first",
    "cut": "texts are cut to 64 tokens, queries are drawn from whole passages",
    "untuned": "one learning rate for all arms",
    "geometry": "means over tokens, cosine and a temperature of 0.05, made for contrast",
    "siblings": "passages of a document are each other's wrong answers, and passages as contexts pull them together",
}
NONE = (("none", "cocondenser-query"), ("none", "cocondenser-query-long"), ("none", "cot-mae-query-long"))
ALL = ("titles", "directions", "cut")
SIBLINGS = (*ALL, "siblings")
CLAIMS = (
    Claim("Queries are better contexts than passages: coCondenser", "Wu et al. 2023, table 1",
          (("cocondenser-passage", "cocondenser-query"), ("cocondenser-passage", "cocondenser-gold")),
          published=0.4, faults=SIBLINGS),
    Claim("… in R@100, where passages as false negatives would show", "Wu et al. 2023, section 1",
          (("cocondenser-passage", "cocondenser-query"),), faults=("titles", "cut", "siblings"), measure="R@100"),
    Claim("Queries are better contexts than passages: CoT-MAE, 1,500 steps", "Wu et al. 2023, table 1",
          (("cot-mae-passage-long", "cot-mae-query-long"),), published=1.4,
          faults=("directions", "cut", "untuned", "geometry")),
    Claim("Queries are better contexts than passages: contrastive, keyphrases", "Wu et al. 2023, table 1, with another loss",
          (("contrastive-passage", "contrastive-query"),), faults=("titles", "cut", "untuned", "siblings")),
    Claim("Pre-training with contexts is better than none", "Gao & Callan 2022, table 3; Wu et al. 2022, table 1",
          (("none", "cocondenser-passage"), *NONE), published=4.8, faults=ALL),
    Claim("… and better than MLM on the same passages", "the same",
          (("mlm", "cocondenser-passage"), ("mlm", "cocondenser-query"),
           ("mlm-long", "cocondenser-query-long"), ("mlm-long", "cot-mae-query-long"),
           ("mlm-timed", "cocondenser-passage"), ("mlm-timed", "cocondenser-query-timed")), faults=ALL),
    Claim("coCondenser is better than Condenser", "Gao & Callan 2022, tables 4 and 5",
          (("condenser", "cocondenser-passage"),), published=1.9, faults=("directions", "cut")),
    Claim("Reconstructing the context is better than contrasting it: CoT-MAE over contrast, keyphrases, 1,500 steps",
          "not as published (Wu et al. 2022, table 1: with passages, over coCondenser)",
          (("cocondenser-query-long", "cot-mae-query-long"), ("contrastive-query-long", "cot-mae-query-long")),
          faults=("directions", "cut", "untuned", "geometry")),
    Claim("CoT-MAE before contrast is better than contrast alone: keyphrases, 1,500 steps each", "nobody's yet",
          (("contrastive-query-long", "cot-mae-then-contrastive-long"),), faults=("directions", "cut", "untuned")),
    Claim("Reconstructing the passage from its vector is better than MLM: RetroMAE", "Xiao et al. 2022",
          (("mlm", "retromae"),), faults=("directions", "cut")),
    Claim("Predicting words from the vector is better than MLM", "Ma et al. 2024",
          (("mlm", "bow-passage"), ("mlm", "bow-query"), ("mlm", "bow-both")), faults=ALL),
    Claim("A Condenser head helps without contexts, in 150 steps", "Gao & Callan 2021", (("mlm", "condenser"),),
          faults=("directions",)),
    Claim("Five queries for each passage are better than one", "Wu et al. 2023, table 3",
          (("cocondenser-one-query", "cocondenser-query"),), published=-0.3, faults=("cut",)),
    Claim("Queries alone are better than a mixture of queries and passages: coCondenser", "Wu et al. 2023, table 4",
          (("cocondenser-mixed", "cocondenser-query"),), published=0.0, faults=("titles", "cut")),
    Claim("It is the query that counts, not merely a short text of the passage", "Wu et al. 2023, section 1",
          (("cocondenser-span", "cocondenser-query"), ("cocondenser-span", "cocondenser-gold")),
          faults=("titles", "cut")),
    Claim("More relevant queries are better: filtered ones", "Wu et al. 2023, section 5.2",
          (("cocondenser-query", "cocondenser-filtered"), ("cocondenser-query", "cocondenser-weighted"),
           ("cocondenser-causal", "cocondenser-causal-filtered")), faults=("cut",)),
    Claim("Passages and queries that the encoder is uncertain about teach it more", "after Kim et al. 2026 (UnIte)",
          (("contrastive-query", "contrastive-uncertain"),), faults=("cut",)),
    Claim("Questions of a language model are better contexts than phrases of the passage", "Wu et al. 2023, section 3.1",
          (("cocondenser-query", "cocondenser-causal"), ("contrastive-query", "contrastive-causal"),
           ("cocondenser-causal", "cocondenser-gold")), faults=("titles", "cut")),
    Claim("MLM and a new Condenser head beside the contrastive loss on keyphrases are needed",
          "not Gao & Callan 2022, table 4: there, contexts are passages and the head is that of a Condenser",
          (("contrastive-query", "cocondenser-query"), ("contrastive-query-long", "cocondenser-query-long"),
           ("contrastive-query-timed", "cocondenser-query-timed"), ("contrastive-unmasked", "cocondenser-query")),
          faults=("directions", "untuned")),
    Claim("Masking what is contrasted helps", "nobody's yet", (("contrastive-unmasked", "contrastive-query"),),
          faults=("cut",)),
    Claim("A Condenser is the better start for coCondenser: 150 steps of it", "Gao & Callan 2022, section 3.2",
          (("cocondenser-query", "cocondenser-warm"),), faults=("cut",)),
    Claim("Stage 2, with mined negatives, is better than stage 1", "Gao & Callan 2022, table 5; Wu et al. 2023, table 1",
          (("cocondenser-query", "cocondenser-query-stage-2"),), published=2.0, faults=("cut",)),
    Claim("Reconstructing the words of the context beside the contrastive loss is better than coCondenser's head",
          "nobody's yet", (("cocondenser-query", "bow-contrastive"), ("cocondenser-gold", "bow-contrastive-gold")),
          faults=("cut", "untuned")),
    Claim("Late interaction gains from the same pre-training, and is better than its vector", "nobody's yet",
          (("none-tokens", "contrastive-query-tokens"), ("contrastive-query", "contrastive-query-tokens")),
          faults=("cut",)),
    Claim("Without labels, scores of a cross-encoder that learned from another set's labels help", "Wang et al. 2022 (GPL)",
          (("none", "none-distilled"), ("contrastive-query", "contrastive-query-distilled")), faults=("directions",)),
    Claim("Soft labels of a cross-encoder help", "Gao & Callan 2022, table 3; Wu et al. 2022, table 2",
          (("cocondenser-query-eight", "cocondenser-query-soft"),), published=0.9, faults=("cut",)),
)  # fmt: skip
