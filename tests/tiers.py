"""The tiers of the suite: what `make test` leaves to `make test-all`, and why.

    python -m tests.tiers     # lists the rules

A rule is a reason and the tests that it is about: a folder or file below `tests`, or a test function in one. What a rule
makes slow has the mark `slow`; everything else is the fast tier, which keeps every promise once: in one representative
case where a test has many (`CASES`), and without other programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

FIXTURES = {
    "browser": "drives a browser",
    "cluster": "starts a Ray cluster",
    "milvus_server": "starts a Milvus server",
    "onnx": "converts a model to ONNX, which takes ten seconds",
    "postgres": "starts a PostgreSQL server",
    "site": "builds the documentation site",
}
"""Fixture → why the tests that request it are slow."""

SLOW: dict[str, list[str]] = {
    "starts Ray, Milvus or PostgreSQL, or several processes that imitate machines": [
        "cluster/test_index.py",
        "cluster/test_ray.py",
        "retrieve/test_milvus.py",
        "retrieve/test_milvus_server.py",
        "training/test_two_hosts.py",
    ],
    "kills and interrupts every command": [
        "frame/test_interrupts.py::test_while_libraries_are_imported",
        "kills",
        "pretrain/test_resume.py::test_killed_it_is_resumed_in_its_format_on_a_machine_of_another_kind",
        "pretrain/test_resume.py::test_snapshots_are_kept_and_survive_a_kill",
        "retrieve/test_encode.py::test_a_killed_run_goes_on_and_ends_in_the_same_bytes",
        "serve/test_judge.py::test_a_server_that_is_killed_has_every_acknowledged_verdict",
        "workflow/test_recipe.py::test_an_interrupted_step_resumes",
    ],
    "starts a command at a terminal": [],
    "drives a browser": [
        "evaluation/test_report.py::test_in_a_real_browser",
        "serve/test_judge.py::test_two_people_judge_in_browsers",
        "serve/test_browser.py",
    ],
    "puts a server under load": [
        "serve/test_refresh.py::test_no_answer_is_lost_or_mixed_while_the_index_is_swapped",
    ],
    "damages what it finds in many ways; the fast tier has a sample": [
        "serve/test_fuzz.py",
    ],
    "runs the examples of help and documentation, in a workspace that is made with twenty commands": [
        "examples/test_docs.py::test_the_blocks_of_a_page_run",
        "examples/test_examples.py::test_a_server_answers_whoever_has_the_token",
        "examples/test_examples.py::test_an_own_loss_is_trained_and_compared",
        "examples/test_examples.py::test_the_whole_pipeline",
        "examples/test_help.py",
        "examples/test_public_names.py::test_the_example_of_a_public_name_runs",
        "examples/test_site.py::test_the_files_of_a_command_are_those_that_it_writes",
    ],
    "generates the whole reference": [
        "examples/test_site.py::test_the_reference_has_every_setting_and_kind",
    ],
    "measures memory, or reads so much that it counts": [
        "corpus/test_sources_dirty.py::test_memory_does_not_grow_with_the_corpus",
        "corpus/test_tokens.py::test_real_text_has_the_tokenizers_own_ids",
        "data/test_compression.py::test_documents_after_a_hundred_million_empty_lines",
        "models/test_real_weights.py",
        "training/test_memory.py",
    ],
    "adapts or trains as a whole once more, under other conditions": [
        "adapt/test_also.py::test_what_people_have_is_measured_as_ours_is",
        "adapt/test_asked.py::test_real_questions_are_learned_from_imitated_and_judged",
        "adapt/test_adapt.py::test_documents_added_changed_and_deleted_are_indexed_without_training",
        "adapt/test_demo.py",
        "adapt/test_generators.py",
        "adapt/test_kept_plans.py",
        "adapt/test_labels.py",
        "adapt/test_models.py::test_prompts_are_those_of_training_measuring_and_search",
        "adapt/test_odd_ids.py",
        "adapt/test_processes.py",
        "adapt/test_retrain.py::test_a_directory_answers_while_it_is_trained_again_and_if_that_is_ended",
        "adapt/test_starts.py::test_the_best_encoder_is_chosen_once",
        "adapt/test_starts.py::test_the_default_comes_from_the_hub_where_it_can_be_reached",
        "adapt/test_starts.py::test_the_choice_stands_in_the_result_and_is_kept_by_an_update",
        "adapt/test_last_stage.py::test_a_recommended_cross_encoder_answers_wherever_the_directory_is_used",
        "evidence",
        "finetune/test_representations.py::test_it_comes_closer_to_a_teacher",
        "queries/test_train_generator.py::test_two_processes_train_one_generator",
        "serve/test_mcp.py::test_nothing_but_the_protocol_is_on_stdout",
        "serve/test_mcp.py::test_over_stdio",
        "serve/test_start.py::test_the_command_serves_until_a_signal",
    ],
    "reads the development data": ["corpus/test_split.py::test_the_development_data"],
}
"""Reason → folders, files and functions whose tests are slow."""

CASES: dict[str, int] = {
    "cluster/test_parts.py::test_shards_make_what_one_process_makes": 3,
    "finetune/test_representations.py::test_a_training_that_was_stopped_ends_in_the_same_bits": 2,
    "finetune/test_representations.py::test_it_comes_closer_to_a_teacher": 1,
    "finetune/test_representations.py::test_search_finds_what_the_similarity_says": 2,
    "finetune/test_representations.py::test_the_cache_trains_the_same": 2,
    "finetune/test_run.py::test_it_learns_and_the_cache_gives_the_plain_gradient_with_dropout_on": 1,
    "models/test_published_configs.py::test_it_is_encoded_trained_and_saved": 2,
    "pretrain/test_gradients.py::test_small_rectangles_give_the_gradient_of_one_padded_batch_with_dropout_on": 3,
    "pretrain/test_no_waiting.py::test_no_step_reads_a_value": 6,
    "pretrain/test_reports.py::test_dropout_does_not_depend_on_the_micro_batches": 1,
    "pretrain/test_run.py::test_every_method_learns_and_leaves_an_encoder_behind": 4,
    "queries/test_causal.py::test_the_batch_does_not_matter": 1,
    "retrieve/test_first_answer.py::test_a_question_imports_nothing_heavy": 2,
    "workflow/test_small.py::test_a_recipe_runs_whole_and_ends_with_scores": 3,
    "workflow/test_small.py::test_a_sweep_runs_whole_and_ends_with_a_table": 1,
}
"""Function → the number of its cases that the fast tier runs, the first ones."""


def names_of(item: pytest.Item) -> list[str]:
    """The names that rules have for a test: its folder, its file and its function, by the path below `tests`."""
    path, _, function = item.nodeid.removeprefix("tests/").partition("::")
    parents = [path[:end] for end, sign in enumerate(path) if sign == "/"]
    return [*parents, path, f"{path}::{function.partition('[')[0]}"]


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Mark the slow tests, each with its reason."""
    reasons = {name: reason for reason, names in SLOW.items() for name in names}
    seen: Counter[str] = Counter()
    for item in items:
        *_, function = names = names_of(item)
        seen[function] += 1
        if function in CASES:
            reason = "the fast tier runs fewer cases" if seen[function] > CASES[function] else None
        else:
            fixtures = getattr(item, "fixturenames", ())
            found = [reasons[name] for name in names if name in reasons]
            found += [FIXTURES[name] for name in fixtures if name in FIXTURES]
            reason = found[-1] if found else None
        if reason:
            item.add_marker(pytest.mark.slow(reason=reason))


def describe() -> str:
    """The rules, for people."""
    lines = []
    for reason, names in SLOW.items():
        lines += [reason, *(f"  {name}" for name in names)]
    lines += ["requests one of these fixtures", *(f"  {name}: {why}" for name, why in FIXTURES.items())]
    lines += ["runs so many cases in the fast tier", *(f"  {name}: {count}" for name, count in CASES.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    print(describe())
