"""The one door to the inside of abbe: what tests use of it that is not public.

A module that moves, or a name that changes, is changed here alone. What is public is imported from where it is public.
Everything is imported on first use, because a test of a bound shall not wait for charts.
"""

from __future__ import annotations

import importlib
from typing import Any

# Modules, of which a test replaces a part for a while.
MODULES = {
    "attention_attend": "abbe._attention.attend",
    "attention_blocks": "abbe._attention.blocks",
    "held_module": "abbe._held",
    "kernels_threads": "abbe._kernels.threads",
    "later_module": "abbe._later",
    "cli_complete": "abbe.cli._complete",
    "cli_names": "abbe.cli._names",
    "cli_options": "abbe.cli._options",
    "cli_watch": "abbe.cli._watch",
    "measures_bootstrap": "abbe.measures._bootstrap",
    "measures_rows": "abbe.measures._rows",
    "export_check": "abbe.models._export.check",
    "load_embedded": "abbe.models._load.embedded",
    "load_gguf": "abbe.models._load.gguf",
    "load_module": "abbe.models._load.load",
    "pull_fetch": "abbe.models._pull.fetch",
    "pull_minilm": "abbe.models._pull.minilm",
    "pull_module": "abbe.models._pull.pull",
    "pull_smollm2": "abbe.models._pull.smollm2",
    "session_selfcheck_output": "abbe.models._session.selfcheck_output",
    "session_module": "abbe.models._session.session",
    "swap_attention": "abbe.models._swap.attention",
    "swap_module": "abbe.models._swap.swap",
    "models_tap": "abbe.models._tap",
    "models_text": "abbe.models._text",
    "normalizers_dispatch": "abbe.normalizers._dispatch",
    "normalizers_registry": "abbe.normalizers._registry",
    "normalizers_step": "abbe.normalizers._step",
    "results_training": "abbe.results._training",
    "calibrate_tune": "abbe.studies._calibrate.tune",
    "capacity_losses": "abbe.studies._capacity.losses",
    "compare_cost": "abbe.studies._compare.cost",
    "compare_result": "abbe.studies._compare.result",
    "compare_tables": "abbe.studies._compare.tables",
    "compare_work": "abbe.studies._compare.work",
    "diagnose_study": "abbe.studies._diagnose.study",
    "doctor_machine": "abbe.studies._doctor.machine",
    "doctor_packages": "abbe.studies._doctor.packages",
    "engine_folder": "abbe.studies._engine.folder",
    "engine_loss": "abbe.studies._engine.loss",
    "engine_settings": "abbe.studies._engine.settings",
    "engine_watch": "abbe.studies._engine.watch",
    "engine_window": "abbe.studies._engine.window",
    "report_alternatives": "abbe.studies._report.alternatives",
    "report_study": "abbe.studies._report.study",
    "reproduce_study": "abbe.studies._reproduce.study",
    "studies_verify": "abbe.studies._verify",
}

# Names by module; "a=b" is b, under a name that tells it from another b.
NAMES = {
    "abbe._attention.attend": "_blockwise",
    "abbe._attention.blocks": "BlockSize",
    "abbe._attention.sdpa": "Options",
    "abbe._held": "LOCK held",
    "abbe._kernels.compiled": "SUMS WideCompiler",
    "abbe._stored": "CHECKED CannotWrite checked is_unfinished read_json write_json write_whole",
    "abbe.measures._bootstrap": "expanded_tail",
    "abbe.measures._critical_units": "least_height",
    "abbe.measures._ks": "ks_heights ks_p_value",
    "abbe.measures._rows": "reference_facts",
    "abbe.measures._sensitivity": "_directions",
    "abbe.measures._set_geometry": "fused_geometry reference_geometry row_geometry",
    "abbe.measures._spectral": "largest_eigenvalue rank_one_norms",
    "abbe.models._export.fresh": "Forbidden fresh_answer=answer",
    "abbe.models._export.fold": "fold_changes=fold",
    "abbe.models._export.scales": "plan_scales=scales",
    "abbe.models._load.gguf_header": "read_settings",
    "abbe.models._load.quiet": "quiet",
    "abbe.models._pull.cache": "model_folder",
    "abbe.models._session.keywords": "HARMLESS Keywords checked_mask read_keywords",
    "abbe.models._session.selfcheck": "check_finite main_output own_attention relative_error tolerance",
    "abbe.models._swap.attention": "swapped_attention",
    "abbe.models._swap.groups": "for_heads",
    "abbe.normalizers._adaptive": "sharpening",
    "abbe.normalizers._registry": "CLASSES",
    "abbe.studies._calibrate.findings": "calibration_findings",
    "abbe.studies._calibrate.fit": "fit",
    "abbe.studies._calibrate.layers": "values_of",
    "abbe.studies._calibrate.result": "HEADS_SCHEMA PARAMETERS_SCHEMA StageLoss stage_losses",
    "abbe.studies._calibrate.rows": "LayerRows RowReader",
    "abbe.studies._capacity.findings": "findings",
    "abbe.studies._capacity.geometry": "capacity_shown_size=shown_size common_sizes correlation_table sizes_for",
    "abbe.studies._capacity.layer_findings": "needed_keys",
    "abbe.studies._capacity.ranks": "least_p_value rank_correlation",
    "abbe.studies._capacity.result": "CORRELATION_SCHEMA GROWTH_SCHEMA WAYS reported_way",
    "abbe.studies._capacity.settings": "CapacitySettings capacity_settings",
    "abbe.studies._capacity.study": "evenly_spaced",
    "abbe.studies._capacity.tables": "capacity_rows capacity_table curve_rows curve_table growth_exponent growth_table",
    "abbe.studies._compare.alternatives": "as_alternatives",
    "abbe.studies._compare.calibrated": "calibrated halves kept_alpha",
    "abbe.studies._compare.capacities": "capacities curve_record",
    "abbe.studies._compare.needle": "batches cell_numbers gain_numbers margins needle_table wilson",
    "abbe.studies._compare.needle_gain": "paired_gain",
    "abbe.studies._compare.needle_prompts": (
        "CANDIDATES DECOYS DEPTHS Prompt PromptMaker compare_KINDS=KINDS plain_words word_counts"
    ),
    "abbe.studies._compare.reading": "SwapReader",
    "abbe.studies._compare.result": "CompareSettings MEASURED NEEDLE_SCHEMA compare_SCHEMA=SCHEMA needle_lengths_for",
    "abbe.studies._compare.rule": "COVERAGE compare_judge=judge rule",
    "abbe.studies._compare.sensitivity": (
        "_weights at_equal_selectivity baseline_logits effective_tokens matched_temperatures spread theory"
    ),
    "abbe.studies._compare.speed": "costs peak_megabytes",
    "abbe.studies._compare.tables": "_plain compare_losses=losses",
    "abbe.studies._diff.paired": "difference_table paired_p q_values",
    "abbe.studies._engine.calibrated": "learnable",
    "abbe.studies._engine.capacity.curve": "Curve trace",
    "abbe.studies._engine.capacity.intervals": "crossings engine_interval=interval least_whole whole_interval",
    "abbe.studies._engine.capacity.search": "COARSE EXACT Sizes bracket is_monotone search",
    "abbe.studies._engine.capacity.truncation": "truncated_rules",
    "abbe.studies._engine.lookup": "Cell Lookup",
    "abbe.studies._engine.loss": "check_causal next_token_losses window_losses",
    "abbe.studies._engine.parts": "Parts",
    "abbe.studies._engine.passes": "read_window run_model",
    "abbe.studies._engine.readings": "DEFAULT EXPECTED LEVELS QueryDistances READINGS TESTS over_units units_key",
    "abbe.studies._engine.settings": "Settings settings_for",
    "abbe.studies._engine.tables": "_largest table",
    "abbe.studies._engine.vectors": "token_vectors",
    "abbe.studies._engine.window": "check_model check_tokens query_positions rows_of_call",
    "abbe.studies._report.advice": "advice gaining",
    "abbe.studies._report.alternatives": (
        "ALTERNATIVES AlternativesReader MOST_WINDOWS SHARPER SPARSE alternatives_table alternatives_windows "
        "block_sums report_SCHEMA=SCHEMA"
    ),
    "abbe.studies._report.answer": "answer",
    "abbe.studies._report.floors": "floors fragile_below",
    "abbe.studies._report.growth": "faint_at growth keys_for_half",
    "abbe.studies._report.head_verdicts": "head_verdicts no_better_than_random",
    "abbe.studies._report.heat": "Heat LEAST MOST_BYTES heat_codes heat_grid weight_of",
    "abbe.studies._report.key_numbers": "key_numbers",
    "abbe.studies._report.next_steps": "next_steps",
    "abbe.studies._report.result": "HeadPattern",
    "abbe.studies._report.sample": "MOST_ROWS SampleReader sample_positions sample_rows sample_window",
    "abbe.studies._report.sample_ball": "azimuths ball_of",
    "abbe.studies._report.sample_json": "sample_as_json sample_from_json",
    "abbe.studies._report.sample_tokens": "CONTINUED LONGEST token_texts",
    "abbe.studies._report.study": "make_report",
    "abbe.studies._report.untrained": "GUESSING UNIFORM_HEADS hardly_learned",
    "abbe.studies._report.verdicts": "verdicts",
    "abbe.studies._reproduce.claim_rules": "slope",
    "abbe.studies._reproduce.claims": "reproduce_judge=judge",
    "abbe.studies._reproduce.claims_readings": "dependence with_readings",
    "abbe.studies._reproduce.claims_weights": "_exponent",
    "abbe.studies._reproduce.plan": "Part plan",
    "abbe.studies._train.optimizers": "OPTIMIZERS",
    "abbe.studies._train.tasks": "TASKS",
    "abbe.views._compare.charts": "frontier looks_of short_names",
    "abbe.views._compare.page": "compare_charts",
    "abbe.views._compare.words": "BY_NAME COLUMNS compare_interval=interval value_text",
    "abbe.views._normalizers": "bar",
    "abbe.views._report.charts": "chart_specifications report_shown_size=shown_size",
    "abbe.views._report.charts_alternatives": "mean_over_heads",
    "abbe.views._report.charts_bars": "equal_bars log_bars",
    "abbe.views._report.charts_gradient": "sensitivities",
    "abbe.views._report.charts_head": "report_KINDS=KINDS",
    "abbe.views._report.charts_table": "FAINT_HEADS",
    "abbe.views._report.figures": "ball_data figures telling_ball telling_head",
    "abbe.views._report.page": "measured_line report_SCRIPTS=SCRIPTS report_facts=facts",
    "abbe.views._reproduce.figures": "drawings for_xml",
    "abbe.views._reproduce.page": "count reproduce_facts=facts",
    "abbe.views._reproduce.words": "WORDS settings_line",
    "abbe.views._shared.data": "both_themes packed packed_table plain_value",
    "abbe.views._shared.labels": "place_names",
    "abbe.views._shared.page": "as_json script vega vega_lite_version",
    "abbe.views._shared.panels": "_ticks rows_of",
    "abbe.views._shared.terminal": "plain",
    "abbe.views._shared.theme": "DARK LIGHT THEMES Theme ThemeName",
    "abbe.views._watch.charts": "watch_chart",
    "abbe.views._watch.kept": "kept_of kept_places",
    "abbe.views._watch.page": "watch_SCRIPTS=SCRIPTS",
}

PLACES = {
    alias: (module, name or alias)
    for module, listed in NAMES.items()
    for alias, _, name in (one.partition("=") for one in listed.split())
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    if name not in PLACES:
        raise AttributeError(f"no door to {name!r}: import it from where it is public, or add it to tests/inside.py")
    module, inner = PLACES[name]
    return getattr(importlib.import_module(module), inner)
