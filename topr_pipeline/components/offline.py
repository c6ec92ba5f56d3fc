"""Artifacts of iterations that train on a set of solutions which is there already."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow.parquet as pq

from topr_pipeline import prompts, rewards, solutions
from topr_pipeline.experiment import Experiment, Offline, Rows
from topr_pipeline.tables import LOGPROBS, REWARDS, SOLUTIONS

if TYPE_CHECKING:
    from topr_pipeline.components.stages import Work


def read(experiment: Experiment, root: Path) -> pl.DataFrame:
    """The rows of the experiment's set; ToprError for what cannot be used."""
    spec, offline = experiment.prompts, experiment.offline
    assert isinstance(spec, Rows) and isinstance(offline, Offline)
    return solutions.read_offline(
        prompts.records(spec, root, "prompts"), spec.columns, offline.columns
    )


def check(experiment: Experiment, root: Path, train: pl.DataFrame) -> None:
    """Find what is wrong with the set, if there is one, before any model is loaded.

    `train` are the training prompts. Of the policy, configuration and tokenizer are read. Raises
    ToprError for what `read_offline` and `encoded` refuse.
    """
    if experiment.offline is None:
        return
    rows = read(experiment, root)
    if experiment.sampling.engine == "fake":
        return
    from topr_pipeline.checkpoints import sources

    tokenizer = sources.tokenizer_of(experiment.policy, root)
    encoder = solutions.Encoder(
        tokenizer,
        frozenset({tokenizer.eos_token_id} - {None}),
        sources.context_of(experiment.policy, root),
        experiment.sampling.stop,
    )
    for _ in solutions.encoded(rows, train, encoder):
        pass


def make_solutions(work: "Work", asked: pl.DataFrame) -> dict[str, Any]:
    """The set's solutions of the prompts `asked`; log mu where it has none is the base policy's."""
    policy = work.input("checkpoint")
    folder = policy.path(work.data)
    rows = read(work.experiment, work.root)
    encoder = work.models.encoder(folder, work.experiment.sampling)
    frames = list(solutions.encoded(rows, asked, encoder))
    version, key = work.inputs[policy.key], f"offline {work.node.code_version}"
    total, done, tokens, given = sum(f.height for f in frames), 0, 0, 0
    reasons, score = Counter[str](), None
    schema = SOLUTIONS.empty().to_arrow().schema
    with pq.ParquetWriter(work.out, schema, compression="zstd") as writer:
        for frame in frames:
            work.progress(done, total)
            unknown = frame.filter(pl.col("logprobs").is_null())
            if unknown.height and score is None:
                score = work.models.scorer(folder)
            own = score(unknown) if score and unknown.height else []
            table = SOLUTIONS.conform(_with_mu(frame, unknown, own, version, key))
            writer.write_table(table.to_arrow())
            given += frame.height - unknown.height
            tokens += int(table["token_ids"].list.len().sum())
            reasons.update(dict(table["finish_reason"].value_counts().iter_rows()))
            done += frame.height
        work.progress(done, total)
    return {
        "rows": total,
        "tokens": tokens,
        "finish_reasons": dict(sorted(reasons.items())),
        "given": given,
        "agreement": asdict(work.models.agreement(work.out, folder)),
    }


def _with_mu(
    frame: pl.DataFrame,
    unknown: pl.DataFrame,
    logprobs: list[list[float]],
    version: str,
    key: str,
) -> pl.DataFrame:
    """`frame` with the log-probs of the rows `unknown`, and whose they are.

    `key` says which set it is, read how, where sampled solutions have the sample store's key.
    """
    on = ["prompt_id", "sample_index"]
    new = unknown.select(
        *on, pl.Series("new", logprobs, dtype=LOGPROBS), policy_version=pl.lit(version)
    )
    joined = frame.join(new, on=on, how="left", maintain_order="left")
    return joined.with_columns(
        logprobs=pl.coalesce("logprobs", "new"),
        logprob=pl.coalesce("logprob", pl.col("new").cast(pl.List(pl.Float64)).list.sum()),
        fingerprint=pl.lit(key),
    )


def make_rewards(work: "Work") -> dict[str, Any]:
    """The rewards that came with the set."""
    offline = work.experiment.offline
    assert offline is not None
    rows = read(work.experiment, work.root)
    columns = ["prompt_id", "sample_index", "finish_reason"]
    table = SOLUTIONS.scan(work.path("solutions")).select(columns).collect()
    said = f"given: {offline.columns.reward}"
    REWARDS.write(rewards.given_rewards(rows, table, said), work.out)
    return {"given": table.height}


def left_out(experiment: Experiment) -> frozenset[str]:
    """Columns of the prompts' rows that are no part of a prompt."""
    return experiment.offline.columns.named if experiment.offline else frozenset()
