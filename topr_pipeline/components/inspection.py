"""What to show of an artifact, read from the artifact itself: figures, previews, plots, checks.

Values are plain: numbers, strings, a polars frame (a table) or PNG bytes (a picture). The Dagster
layer and the command line each show them in their own way.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from topr_pipeline import mixes, rewards, solutions
from topr_pipeline.checkpoints.agreement import Agreement
from topr_pipeline.checks import Check
from topr_pipeline.components.graph import CHECKS, Node
from topr_pipeline.components.stages import MIX_FIGURES
from topr_pipeline.evals import (
    mix_solve_rates,
    mix_waterfall,
    reward_histogram,
    training_curve,
)
from topr_pipeline.experiment import Experiment
from topr_pipeline.report import PAGE
from topr_pipeline.tables import (
    EVAL_SCORES,
    MIX,
    PROMPTS,
    REWARDS,
    SOLUTIONS,
    TIMED,
    TRAINING_LOG,
)

Value = int | float | str | bytes | pl.DataFrame
EXAMPLES = 5


@dataclass(frozen=True)
class Inspection:
    """`headline` is the one figure for a table of all artifacts, such as `pass@1 0.67`."""

    headline: str
    metadata: Mapping[str, Value]
    checks: list[Check] = field(default_factory=list)


Figures = Mapping[str, Any]


def inspect(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    """What to show of the artifact of `node`; `figures` are those that its maker returned."""
    found = _INSPECTORS[node.stage](node, experiment, data, figures)
    assert tuple(c.name for c in found.checks) == CHECKS.get(node.stage, ()), node.key
    return found


def _prompts(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    table = PROMPTS.read(node.path(data))
    preview = table.select("prompt", "gold", "source").head(EXAMPLES)
    return Inspection(f"{table.height} prompts", {"rows": table.height, "preview": preview})


def _base_policy(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    return Inspection(*_checkpoint_metadata(node, data))


def _checkpoint(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    headline, metadata = _checkpoint_metadata(node, data)
    ratio, steps, finite = (figures[k] for k in ("mean_clipped_ratio", "steps", "finite"))
    metadata |= {} if ratio is None else {"mean_clipped_ratio": ratio}
    said = f"loss and gradient norm of {steps} steps are {'' if finite else 'not all '}finite"
    checks = [
        Check("finite", finite, said, {"steps": steps}),
        _behaviour_logprobs(ratio, experiment, node.iteration),
    ]
    return Inspection(headline, metadata, checks)


def _behaviour_logprobs(
    ratio: float | None, experiment: Experiment, iteration: int | None
) -> Check:
    limits = experiment.training.ratio_limits
    if ratio is None:
        said = "not compared: the objective does not read mu, or no sample is of this iteration"
        return Check("behaviour_logprobs", True, said, {})
    if not experiment.is_on_policy(iteration):
        said = f"{_OFFLINE}: mean clipped ratio {ratio:.4f} on the first batch before training"
        return Check("behaviour_logprobs", True, said, {"mean_clipped_ratio": ratio})
    said = (
        f"mean clipped ratio {ratio:.4f} on the first batch before training; "
        f"training.ratio_limits accepts {list(limits)}"
    )
    within = limits[0] <= ratio <= limits[1]
    return Check("behaviour_logprobs", within, said, {"mean_clipped_ratio": ratio})


def _checkpoint_metadata(node: Node, data: Path) -> tuple[str, dict[str, Value]]:
    from topr_pipeline.checkpoints.folders import describe

    metadata: dict[str, Value] = dict(describe(node.path(data)))
    path = node.path(data) / TIMED
    if not path.exists():
        return f"{metadata['parameters']:,} parameters", metadata
    log = TRAINING_LOG.read(path)
    last = log.row(-1, named=True)
    metadata |= {"steps": log.height, "loss": last["loss"], "training": training_curve(log)}
    return f"{log.height} steps, loss {last['loss']:.3f}", metadata


def _solutions(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    prompts = PROMPTS.scan(data / f"{node.key.split('/')[0]}/prompts.parquet")
    first = experiment.sampling.samples_per_prompt if node.stage == "top_up_solutions" else 0
    examples = _examples(SOLUTIONS.scan(node.path(data)), prompts, first)
    found = Agreement(**figures["agreement"])
    metadata = {**_sampling_metadata(figures), "examples": examples}
    compared = not figures.get("given")
    check = _logprob_agreement(found, experiment.training.ratio_limits, compared)
    return Inspection(f"{figures['rows']} samples", metadata, [check])


_OFFLINE = "not compared: log mu is that of an off-policy set"


def _top_up_solutions(
    node: Node, experiment: Experiment, data: Path, figures: Figures
) -> Inspection:
    found = _solutions(node, experiment, data, figures)
    metadata = {**found.metadata, "prompts": figures["prompts"]}
    return replace(
        found, headline=f"{found.headline} of {figures['prompts']} prompts", metadata=metadata
    )


def _logprob_agreement(found: Agreement, limits: tuple[float, float], compared: bool) -> Check:
    if not compared:
        said = (
            f"{_OFFLINE}; over {found.sequences} samples, the base policy's log pi give a mean "
            f"clipped ratio of {found.mean_clipped_ratio:.4f}"
        )
        return Check("logprob_agreement", True, said, asdict(found))
    said = (
        f"over {found.sequences} samples, stored log-probs differ from the policy's own by "
        f"{found.mean_difference:.2g} per token (at most {found.max_difference:.2g}); mean clipped "
        f"ratio {found.mean_clipped_ratio:.4f}, of the inverse {found.inverse_ratio:.4f}; "
        f"training.ratio_limits accepts {list(limits)}"
    )
    return Check("logprob_agreement", found.within(limits), said, asdict(found))


def _sampling_metadata(figures: Figures) -> dict[str, Value]:
    """From what the maker counted while it wrote: the table may not fit into memory."""
    rows, tokens, reasons = figures["rows"], figures["tokens"], figures["finish_reasons"]
    metadata: dict[str, Value] = {
        "rows": rows,
        "tokens": tokens,
        "mean_tokens": tokens / max(rows, 1),
        "truncated_share": reasons.get("length", 0) / max(rows, 1),
        "finish_reasons": ", ".join(f"{reason} {n}" for reason, n in reasons.items()),
    }
    if "given" in figures:
        return {**metadata, "given_logprobs_share": figures["given"] / max(rows, 1)}
    metadata["cache_hit_share"] = 1 - figures["sampled"] / max(rows, 1)
    if figures["sampling_s"] > 0:
        metadata["tokens_per_s"] = figures["sampled_tokens"] / figures["sampling_s"]
        metadata["samples_per_s"] = figures["sampled"] / figures["sampling_s"]
    return metadata


def _examples(solutions: pl.LazyFrame, prompts: pl.LazyFrame, first: int = 0) -> pl.DataFrame:
    """The first sample of a few prompts, from sample_index `first` on."""
    few = solutions.filter(sample_index=first).select(
        "prompt_id", "text", "logprob", "finish_reason", tokens=pl.col("token_ids").list.len()
    )
    asked = prompts.select("prompt_id", "prompt")
    joined = few.head(EXAMPLES).join(asked, on="prompt_id", how="left", maintain_order="left")
    return joined.select("prompt", "text", "tokens", "logprob", "finish_reason").collect()


def _rewards(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    table = REWARDS.read(node.path(data))
    summary = rewards.summarise(table)
    name = node.key.split("/")[0]
    texts = SOLUTIONS.scan(_beside(node, node.stage.replace("rewards", "solutions"), data))
    prompts = PROMPTS.read(data / name / "prompts.parquet")
    metadata: dict[str, Value] = {
        "rows": table.height,
        **summary.shares,
        "prompts_none_correct": summary.none_correct,
        "prompts_all_correct": summary.all_correct,
        "never_trained_on": summary.unrewarded,
        **_verifying_metadata(figures),
        "solve_rates": reward_histogram(table),
        "examples": rewards.examples(table, _texts_of_a_few(table, texts), prompts),
    }
    return Inspection(
        f"correct {summary.shares['correct']:.3f}",
        metadata,
        rewards.checks(table, experiment.rewards),
    )


def _top_up_rewards(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    """Of the prompts that lacked something, how many have enough now."""
    found = _rewards(node, experiment, data, figures)
    first, further = (REWARDS.read(p) for p in (_beside(node, "rewards", data), node.path(data)))
    assert experiment.top_up
    lacked, lack = (
        solutions.lacking(table, experiment.top_up).height
        for table in (first, pl.concat([first, further]))
    )
    enough = f"{lacked - lack} of {lacked} prompts have enough now"
    metadata = {**found.metadata, "prompts_lacking": lacked, "prompts_lacking_still": lack}
    # Truncated and invalid samples are more frequent here: these prompts are the hard ones.
    checks = [check for check in found.checks if check.name in CHECKS[node.stage]]
    return Inspection(enough, metadata, checks)


def _beside(node: Node, stage: str, data: Path) -> Path:
    """The artifact of another stage of the same iteration."""
    return node.path(data).with_name(f"{stage}.parquet")


def _texts_of_a_few(table: pl.DataFrame, solutions: pl.LazyFrame) -> pl.DataFrame:
    """The texts of the first rows of each outcome: all of them may not fit into memory."""
    key = ["prompt_id", "sample_index"]
    few = table.group_by("outcome", maintain_order=True).head(EXAMPLES).select(key)
    return solutions.select(*key, "text").join(few.lazy(), on=key, how="semi").collect()


def _verifying_metadata(figures: Figures) -> dict[str, Value]:
    """How the verdicts came about: pairs of gold and answer are judged once."""
    if "given" in figures:
        return {"rewards_given": figures["given"]}
    metadata: dict[str, Value] = {
        "pairs": figures["pairs"],
        "duplicates_saved_share": figures["duplicates_saved"],
        "judged_in_workers": figures["judged"],
        "verdicts_cached": figures["cached"],
        "verdicts_stopped": figures["stopped"],
    }
    if figures["slowest"]:
        rows = [[str(value) for value in pair] for pair in figures["slowest"]]
        columns = ["seconds", "gold", "answer"]
        metadata["slowest_pairs"] = pl.DataFrame(rows, schema=columns, orient="row")
    return metadata


def _mix(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    table, folder = MIX.scan(node.path(data)), data / node.key.split("/")[0]
    shares = {key: figures[key] for key in MIX_FIGURES[1:]}
    composition = pl.DataFrame(figures["composition"], infer_schema_length=None).fill_null(0)
    texts = {at: _all_samples(experiment, at, folder) for at in composition["iteration"]}
    return Inspection(
        f"{figures['rows']} samples, p {shares['positive_share']:.3f}, "
        f"p~ {shares['effective_positive_share']:.3f}",
        {
            "rows": figures["rows"],
            **shares,
            "waterfall": pl.DataFrame(figures["waterfall"]),
            "waterfall_plot": mix_waterfall(figures["waterfall"]),
            "composition": composition,
            "solve_rates": mix_solve_rates(figures["solve_rates"], figures["samples_per_prompt"]),
            "examples": mixes.examples(table, texts, PROMPTS.read(folder / "prompts.parquet")),
        },
        mixes.checks(table, experiment.mix),
    )


def _all_samples(experiment: Experiment, iteration: int, folder: Path) -> pl.LazyFrame:
    """The solutions of an iteration, those of its top-up too."""
    stages = ["solutions", *(["top_up_solutions"] if experiment.is_topped_up(iteration) else [])]
    return pl.concat(SOLUTIONS.scan(folder / f"iter_{iteration:02d}/{s}.parquet") for s in stages)


def _eval_scores(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    scores = EVAL_SCORES.read(node.path(data) / "scores.parquet")
    values = {metric: value for metric, value in scores.select("metric", "value").iter_rows()}
    return Inspection(
        f"pass@1 {values['pass@1']:.3f}",
        {**values, "scores": scores, **_sampling_metadata(figures)},
        [_unverifiable(values["unverifiable"], experiment)],
    )


def _unverifiable(share: float, experiment: Experiment) -> Check:
    """Scores are of what could be verified: of how much could not?"""
    limit = experiment.rewards.limits.unverifiable
    said = f"{share:.1%} of the samples are unverifiable; rewards.limits.unverifiable: {limit:.1%}"
    return Check("unverifiable_share", share <= limit, said, {"share": share, "limit": limit})


def _report(node: Node, experiment: Experiment, data: Path, figures: Figures) -> Inspection:
    folder = node.path(data)
    table = pl.read_parquet(folder / "scores.parquet")
    first, last = table.filter(metric="pass@1").sort("iteration")["value"].gather([0, -1])
    return Inspection(
        f"pass@1 {first:.3f} -> {last:.3f}",
        {
            "report": str(folder / PAGE),
            "learning_curve": (folder / "learning_curve.png").read_bytes(),
            "scores": table,
            "differences": pl.read_parquet(folder / "differences.parquet"),
        },
    )


_INSPECTORS: Mapping[str, Callable[[Node, Experiment, Path, Figures], Inspection]] = {
    "prompts": _prompts,
    "eval_prompts": _prompts,
    "base_policy": _base_policy,
    "solutions": _solutions,
    "rewards": _rewards,
    "top_up_solutions": _top_up_solutions,
    "top_up_rewards": _top_up_rewards,
    "mix": _mix,
    "checkpoint": _checkpoint,
    "eval_scores": _eval_scores,
    "report": _report,
}
