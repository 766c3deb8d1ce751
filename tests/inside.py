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
    "declared": "abbe._declared",
    "attention_blocks": "abbe._attention.engine",
    "float64_module": "abbe._float64",
    "sparse_call": "abbe._attention.sparse.forward",
    "sparse_op": "abbe._attention.sparse.op",
    "kernels_switch": "abbe._kernels.switch",
    "kernels_threads": "abbe._kernels.threads",
    "lazy_module": "abbe._lazy",
    "cli_complete": "abbe.cli._complete",
    "cli_names": "abbe.cli._names",
    "cli_options": "abbe.cli._options",
    "measures_bootstrap": "abbe.measures._bootstrap",
    "measures_rows": "abbe.measures._rows",
    "export_check": "abbe.models._export.check",
    "load_embedded": "abbe.models._load.sources",
    "load_folder": "abbe.models._load.folder",
    "load_gguf": "abbe.models._load.gguf",
    "load_module": "abbe.models._load.load",
    "load_device": "abbe.models._load.device",
    "load_room": "abbe.models._load.room",
    "pull_module": "abbe.models._pull",
    "session_selfcheck": "abbe.models._session.selfcheck",
    "session_module": "abbe.models._session.session",
    "swap_attention": "abbe.models._swap.attention",
    "swap_module": "abbe.models._swap.swap",
    "models_tap": "abbe.models._tap",
    "models_text": "abbe.models._text",
    "normalizers_dispatch": "abbe.normalizers._row_map",
    "normalizers_row_map": "abbe.normalizers._row_map",
    "normalizers_registry": "abbe.normalizers._registry",
    "normalizers_step": "abbe.normalizers._step",
    "triton_choice": "abbe.normalizers._triton.choice",
    "triton_run": "abbe.normalizers._triton.run",
    "capacity_losses": "abbe.studies._capacity.losses",
    "compare_result": "abbe.studies._compare.result",
    "compare_study": "abbe.studies._compare.study",
    "cost_probe": "abbe.studies._cost.probe",
    "cost_study": "abbe.studies._cost.study",
    "diagnose_study": "abbe.studies._diagnose.study",
    "doctor_machine": "abbe.studies._doctor.machine",
    "doctor_packages": "abbe.studies._doctor.packages",
    "engine_fitting": "abbe.studies._shared.fitting",
    "engine_folder": "abbe.runs.folder",
    "engine_loss": "abbe.runs.loss",
    "engine_measuring": "abbe.runs.measuring",
    "engine_room": "abbe.runs.cost",
    "engine_settings": "abbe.runs.settings",
    "engine_watch": "abbe.runs.watch",
    "engine_window": "abbe.runs.window",
    "report_alternatives": "abbe.studies._report.alternatives",
    "report_study": "abbe.studies._report.study",
    "reproduce_study": "abbe.studies._reproduce.study",
    "lab_reading": "abbe.lab.reading",
    "lift_schedule": "abbe.studies._lift.schedule",
    "lift_text_parts": "abbe.studies._lift.text_parts",
    "studies_verify": "abbe.studies._verify",
}

# Names by module; "a=b" is b, under a name that tells it from another b.
NAMES = {
    "abbe._attention.attend": "Options _blockwise",
    "abbe._attention.engine": "BlockSize",
    "abbe._locks": "HOLDER LOCK held",
    "abbe._kernels.compiled": "SUMS WideCompiler",
    "abbe._kernels.sums": "vector_lanes",
    "abbe.cli._study": "command_of",
    "abbe._files": "CHECKED CannotWrite checked is_unfinished read_json write_json write_whole",
    "abbe.measures._bootstrap": "expanded_tail",
    "abbe.measures._critical": "ks_heights ks_p_value least_height",
    "abbe.measures._rows": "reference_facts",
    "abbe.measures._geometry": "fused_geometry reference_geometry row_geometry",
    "abbe.measures._sensitivity": "directions largest_eigenvalue rank_one_norms",
    "abbe.models._export.fresh": "Forbidden fresh_answer=answer",
    "abbe.models._export.fold": "fold_changes=fold",
    "abbe.models._export.export": "plan_scales=scales",
    "abbe.models._load.gguf": "read_settings",
    "abbe.models._load.sources": "quiet",
    "abbe.models._session.call": "HARMLESS Keywords RawCall checked_mask read_keywords",
    "abbe.models._session.selfcheck": "check_finite main_output own_attention relative_error",
    "abbe.models._swap.attention": "for_heads swapped_attention",
    "abbe.normalizers._adaptive": "sharpening",
    "abbe.normalizers._registry": "CLASSES",
    "abbe.normalizers._triton.backward": "triton_backward=backward",
    "abbe.normalizers._triton.forward": "triton_forward=forward",
    "abbe.studies._calibrate.layers": "values_of",
    "abbe.studies._calibrate.result": "StageLoss calibration_findings stage_losses",
    "abbe.studies._capacity.findings": "findings",
    "abbe.studies._capacity.geometry": (
        "capacity_shown_size=shown_size common_sizes correlation_table least_p_value rank_correlation sizes_for"
    ),
    "abbe.studies._capacity.layer_findings": "needed_keys",
    "abbe.studies._capacity.result": "CORRELATION_SCHEMA GROWTH_SCHEMA WAYS reported_way",
    "abbe.studies._capacity.settings": "CapacitySettings capacity_settings",
    "abbe.studies._capacity.study": "evenly_spaced",
    "abbe.studies._capacity.tables": "capacity_rows capacity_table curve_rows curve_table growth_exponent growth_table",
    "abbe.studies._compare.alternatives": "as_alternatives halves",
    "abbe.studies._compare.result": "CompareSettings MEASURED needle_lengths_for",
    "abbe.studies._compare.rule": "COVERAGE compare_judge=judge rule",
    "abbe.studies._compare.study": "SwapReader",
    "abbe.studies._compare.tables": (
        "_mean _plain _sensitivities capacities cell_numbers compare_losses=losses curve_record gain_numbers "
        "needle_table"
    ),
    "abbe.studies._cost.rates": "OPERATIONS Rates TRAFFIC",
    "abbe.studies._diff.fitted": "fitted_rows",
    "abbe.studies._diff.paired": "difference_table paired_p q_values",
    "abbe.studies._shared.calibrated": "learnable",
    "abbe.runs.cost": "estimate",
    "abbe.studies._shared.estimates": "paired_gain share_right",
    "abbe.studies._shared.fitting": "LayerRows RowReader fit",
    "abbe.runs.lookup": "Lookup",
    "abbe.runs.loss": "check_causal next_token_losses window_losses",
    "abbe.runs.parts": "Parts",
    "abbe.runs.window": ("check_model check_tokens query_positions read_window rows_of_call run_model token_vectors"),
    "abbe.runs.tables": "DEFAULT EXPECTED LEVELS QueryDistances READINGS TESTS _largest over_units table units_key",
    "abbe.studies._shared.prompts": (
        "CANDIDATES DECOYS DEPTHS Haystack KEY_SENTENCES PassKeyMaker Prompt PromptMaker ReadHaystack answers batches "
        "compare_KINDS=KINDS margins plain_words read_all word_counts"
    ),
    "abbe.runs.settings": "Settings settings_for",
    "abbe.studies._shared.swapped": (
        "_weights at_equal_selectivity baseline_logits costs effective_tokens matched_temperatures peak_megabytes "
        "spread theory"
    ),
    "abbe.studies._shared.truncation": (
        "COARSE Curve EXACT Sizes bracket crossings engine_interval=interval is_monotone least_whole search trace "
        "truncated_rules whole_interval"
    ),
    "abbe.studies._lift.rule": "CONTROL Judged PLAN decide rule_text",
    "abbe.studies._lift.schedule": "Load fitting full passes reserves seconds_of_a_pass what_was_cut",
    "abbe.studies._lift.search": "LiftCell=Cell Tried best for_next_round layer_groups nested_recipes thinned",
    "abbe.studies._lift.settings": "LiftSettings",
    "abbe.studies._lift.text_parts": "Sealed TextPart cut judged_lengths",
    "abbe.studies._lift.tuning": "Fits LiftPlan=Plan SlopeLearner learns recipe_name round_ends",
    "abbe.studies._report.alternatives": (
        "ALTERNATIVES ALTERNATIVES_SCHEMA AlternativesReader MOST_WINDOWS SHARPER SPARSE alternatives_table "
        "alternatives_windows block_sums"
    ),
    "abbe.studies._report.heads": "HeadPattern",
    "abbe.studies._report.sample": (
        "CONTINUED Heat LEAST LONGEST MOST_BYTES MOST_ROWS SampleReader azimuths ball_of heat_codes heat_grid "
        "sample_positions sample_rows sample_window token_texts weight_of"
    ),
    "abbe.studies._report.study": "make_report",
    "abbe.studies._reproduce.claims": "Judgement reproduce_judge=judge with_readings=_with_readings",
    "abbe.studies._reproduce.figures": "Part plan",
    "abbe.lab.run": "lab_Configuration=Configuration lab_train=train",
    "abbe.lab.tasks": "make_task",
    "abbe.views._compare.charts": "frontier looks_of short_names",
    "abbe.views._compare.page": "compare_charts compare_page",
    "abbe.views._compare.words": "BY_NAME COLUMNS compare_interval=interval value_text",
    "abbe.views._diagnosis": "summary",
    "abbe.views._lift.charts": "plans_chart scan_chart",
    "abbe.views._normalizers": "bar",
    "abbe.views._report.charts_alternatives": "mean_over_heads",
    "abbe.views._report.charts_bars": "equal_bars log_bars",
    "abbe.views._report.charts_gradient": "sensitivities",
    "abbe.views._report.charts_head": "report_KINDS=KINDS",
    "abbe.views._report.charts_table": "FAINT_HEADS report_shown_size=shown_size",
    "abbe.views._report.figures": "ball_data chart_specifications figures telling_ball telling_head",
    "abbe.views._report.page": "measured_line report_page report_SCRIPTS=SCRIPTS report_facts=facts",
    "abbe.views._reproduce.page": "reproduce_facts=facts reproduction_page",
    "abbe.views._reproduce.words": "WORDS settings_line",
    "abbe.views._shared.data": "both_themes packed packed_table plain_value",
    "abbe.views._shared.drawings": "drawings for_xml",
    "abbe.views._shared.labels": "place_names",
    "abbe.views._shared.page": "as_json script vega vega_lite_version",
    "abbe.views._shared.panels": "_ticks rows_of",
    "abbe.views._shared.terminal": "plain",
    "abbe.views._shared.theme": "DARK LIGHT THEMES Theme ThemeName",
}

PLACES = {
    alias: (module, name or alias)
    for module, listed in NAMES.items()
    for alias, _, name in (one.partition("=") for one in listed.split())
}

# Where the schema of each table of a result is, by study and table.
SCHEMAS = {
    "diagnose": {"table": "abbe.results SCHEMA"},
    "report": {
        "table": "abbe.results SCHEMA",
        "growth": "abbe.studies._report.heads GROWTH_SCHEMA",
        "floors": "abbe.studies._report.heads FLOORS_SCHEMA",
        "alternatives": "abbe.studies._report.alternatives ALTERNATIVES_SCHEMA",
    },
    "report --each": {"table": "abbe.studies._each SCHEMA"},
    "diff": {"table": "abbe.studies._diff.paired SCHEMA", "curves": "abbe.studies._diff.result CURVE_SCHEMA"},
    "watch": {"table": "abbe.results TRAINING_SCHEMA", "alerts": "abbe.results._training _ALERT_SCHEMA"},
    "compare": {
        "table": "abbe.studies._compare.result SCHEMA",
        "needle": "abbe.studies._compare.result NEEDLE_SCHEMA",
        "judgements": "abbe.studies._compare.result JUDGEMENT_SCHEMA",
    },
    "capacity": {
        "table": "abbe.studies._capacity.result TABLE_SCHEMA",
        "curve": "abbe.studies._capacity.result CURVE_SCHEMA",
        "growth": "abbe.studies._capacity.result GROWTH_SCHEMA",
        "correlation": "abbe.studies._capacity.result CORRELATION_SCHEMA",
    },
    "calibrate": {
        "table": "abbe.studies._calibrate.result HEADS_SCHEMA",
        "parameters": "abbe.studies._calibrate.result PARAMETERS_SCHEMA",
    },
    "lift": {
        "table": "abbe.studies._lift.result SCHEMA",
        "scan": "abbe.studies._lift.result SCAN_SCHEMA",
        "plans": "abbe.studies._lift.result PLANS_SCHEMA",
        "keys": "abbe.studies._lift.result KEYS_SCHEMA",
    },
    "train": {
        "table": "abbe.lab.result TABLE_SCHEMA",
        "curves": "abbe.lab.result CURVE_SCHEMA",
        "summary": "abbe.lab.result SUMMARY_SCHEMA",
        "lengths": "abbe.lab.result LENGTH_SCHEMA",
        "alerts": "abbe.lab.result ALERT_SCHEMA",
        "warnings": "abbe.lab.result WARNING_SCHEMA",
        "roc": "abbe.lab.result ROC_SCHEMA",
    },
    "cost": {"table": "abbe.studies._cost.result SCHEMA"},
}


def schema_of(study: str, table: str) -> dict[str, Any]:
    """The columns of a table of a result."""
    module, name = SCHEMAS[study][table].split()
    return dict(getattr(importlib.import_module(module), name))


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    if name not in PLACES:
        raise AttributeError(f"no door to {name!r}: import it from where it is public, or add it to tests/inside.py")
    module, inner = PLACES[name]
    return getattr(importlib.import_module(module), inner)
