"""A mix, or an iteration's solutions, as a data set for other tools.

A folder that `datasets.load_dataset` reads and the Hub shows: `data/train.parquet` with a row per
sample, a card, and two files for other trainers: `sft.jsonl` with the correct samples (prompt,
completion) and `dpo.jsonl` with pairs within a prompt (prompt, chosen, rejected), as TRL reads
them; `dataset_info.json` says the same to LLaMA-Factory.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import yaml

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.tables import atomic_path
from topr_pipeline.views import query

EVERY = """
FROM {0} UNION ALL BY NAME FROM top_up_{0}
ANTI JOIN {0} USING (experiment, iteration, prompt_id, sample_index)
"""
"""The first and the further samples of an iteration (an old top-up may overlap with the first)."""

ROWS = {
    "mix": f"""
WITH every_solution AS ({EVERY.format("solutions")}), every_reward AS ({EVERY.format("rewards")})
SELECT p.prompt, t.text AS completion, r.answer, p.gold, r.outcome, s.reward, s.advantage,
  s.logprob, len(s.token_ids) AS tokens, s.sampled_iteration, s.prompt_id, s.sample_index
FROM mixes s
JOIN every_solution t ON t.experiment = s.experiment AND t.iteration = s.sampled_iteration
  AND t.prompt_id = s.prompt_id AND t.sample_index = s.sample_index
JOIN every_reward r ON r.experiment = s.experiment AND r.iteration = s.sampled_iteration
  AND r.prompt_id = s.prompt_id AND r.sample_index = s.sample_index
JOIN prompts p ON p.experiment = s.experiment AND p.prompt_id = s.prompt_id
WHERE s.experiment = $experiment AND s.iteration = $iteration
ORDER BY s.prompt_id, s.sampled_iteration, s.sample_index
""",
    "solutions": """
SELECT p.prompt, s.text AS completion, r.answer, p.gold, r.outcome, r.reward, s.logprob,
  len(s.token_ids) AS tokens, s.finish_reason, s.prompt_id, s.sample_index
FROM solutions s
JOIN rewards r USING (experiment, iteration, prompt_id, sample_index)
JOIN prompts p ON p.experiment = s.experiment AND p.prompt_id = s.prompt_id
WHERE s.experiment = $experiment AND s.iteration = $iteration
ORDER BY s.prompt_id, s.sample_index
""",
}
"""What is exported, by the name of the artifact."""

LLAMA_FACTORY = {
    "sft": {"file_name": "sft.jsonl", "columns": {"prompt": "prompt", "response": "completion"}},
    "dpo": {
        "file_name": "dpo.jsonl",
        "ranking": True,
        "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
    },
}

CARD = """---
license: {license}
task_categories: [text-generation]
tags: [topr, off-policy, {what}]
configs:
- config_name: default
  data_files: data/train.parquet
---

# {name}, iteration {iteration}: {what}

{description}

{rows:,} samples of {prompts:,} prompts, {correct:.1%} of them correct. `sft.jsonl` holds the
{sft:,} correct ones, `dpo.jsonl` {dpo:,} pairs of a correct and another sample of one prompt.
Prompts are as the policy read them, with template and examples.

| outcome | samples | share |
|---|---|---|
{outcomes}

Made by [TOPR](https://arxiv.org/abs/2503.14286) (Tapered Off-Policy REINFORCE); `logprob` is the
behaviour policy's log-prob of the whole completion, in nats, at T=1.

## How it came about

Policy of iteration {before}; its base, the prompts, the verifier and the steps of curation:

```yaml
{how}```
"""


def export(
    name: str,
    experiment: Experiment,
    iteration: int,
    what: str,
    data: Path,
    folder: Path,
    license: str = "unknown",
) -> Mapping[str, int]:
    """Write the data set into `folder`; how many rows each of its files has.

    `what` is "mix" or "solutions", `license` the card's: it depends on the prompts and the model.
    Raises ToprError when the folder is there already, and when the artifact or its rewards are not.
    """
    if folder.exists():
        raise ToprError(f"{folder} is there already; name a new folder")
    rows = query(ROWS[what], data, {"experiment": name, "iteration": iteration})
    if rows.is_empty():
        raise ToprError(
            f"{name}/iter_{iteration:02d} has no {what} with rewards yet; "
            f"run `topr run {name} --through {iteration}`"
        )
    sft, dpo = _correct(rows), _pairs(rows)
    with atomic_path(folder) as temporary:
        (temporary / "data").mkdir(parents=True)
        rows.write_parquet(temporary / "data" / "train.parquet")
        sft.write_ndjson(temporary / "sft.jsonl")
        dpo.write_ndjson(temporary / "dpo.jsonl")
        (temporary / "dataset_info.json").write_text(json.dumps(LLAMA_FACTORY, indent=1))
        card = _card(
            rows,
            experiment,
            sft=sft.height,
            dpo=dpo.height,
            what=what,
            license=license,
            name=name,
            iteration=iteration,
            before=iteration - 1,
        )
        (temporary / "README.md").write_text(card)
    return {"data/train.parquet": rows.height, "sft.jsonl": sft.height, "dpo.jsonl": dpo.height}


def _correct(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(outcome="correct").select("prompt", "completion")


def _pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """The i-th correct with the i-th other sample of each prompt, as far as there are both."""
    right = pl.col("outcome") == "correct"
    rewarded = rows.filter(pl.col("reward").is_not_null())
    chosen, rejected = (
        rewarded.filter(kind)
        .with_columns(rank=pl.int_range(pl.len()).over("prompt_id"))
        .select("prompt_id", "rank", "prompt", pl.col("completion").alias(side))
        for kind, side in ((right, "chosen"), (~right, "rejected"))
    )
    paired = chosen.join(rejected, on=["prompt_id", "rank"], how="inner", maintain_order="left")
    return paired.select("prompt", "chosen", "rejected")


def _card(rows: pl.DataFrame, spec: Experiment, **said: object) -> str:
    outcomes = rows.group_by("outcome").len().sort("len", "outcome", descending=[True, False])
    how = {
        section: keys.model_dump(mode="json", exclude_none=True)
        for section in ("policy", "prompts", "template", "sampling", "rewards", "top_up", "mix")
        if (keys := getattr(spec, section))
    }
    return CARD.format(
        description=spec.description,
        rows=rows.height,
        prompts=rows["prompt_id"].n_unique(),
        correct=(rows["outcome"] == "correct").mean(),
        outcomes="\n".join(
            f"| {outcome} | {n:,} | {n / rows.height:.1%} |" for outcome, n in outcomes.iter_rows()
        ),
        how=yaml.safe_dump(how, sort_keys=False, allow_unicode=True),
        **said,
    )


def upload(folder: Path, repository: str) -> str:
    """Upload an exported folder to a private data set on the Hub; its address.

    The token is the one that `huggingface-cli login` or HF_TOKEN gives. Raises ToprError with what
    the Hub says.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    api = HfApi()
    try:
        address = api.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=repository, repo_type="dataset")
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise ToprError(
            f"--hub {repository}: {error}; {folder} is written and can be uploaded again"
        ) from error
    return str(address)
