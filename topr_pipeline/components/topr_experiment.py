"""The Dagster component: one YAML file unrolled into assets, checks and a job."""

import base64
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import dagster as dg
import polars as pl
from pydantic import BaseModel

from topr_pipeline.components.graph import CHECKS, Node, unroll
from topr_pipeline.components.inspection import Value
from topr_pipeline.components.models import RealModels
from topr_pipeline.components.pipes import PipesChannel
from topr_pipeline.components.runs import EXPERIMENT_TAG, asset_key
from topr_pipeline.components.samples import part_name
from topr_pipeline.components.schedule import Scheduled, automation, condition
from topr_pipeline.components.step import USES_MODELS, Made, Place, make, make_part
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Experiment
from topr_pipeline.tables import EVAL_SCORES, MIX, PROMPTS, REWARDS, SOLUTIONS, Table

FORCE_TAG = "topr/force"
"""Run tag: comma-separated asset keys that are made again even when nothing changed."""

DESCRIPTIONS: Mapping[str, str] = {
    "prompts": "Problems that the policy is trained on, with their right answers.",
    "eval_prompts": "Held-out problems, none of them among the training prompts.",
    "base_policy": "The base policy, in Hugging Face format.",
    "solutions": "Sampled or imported solutions with the behaviour policy's log-probs (mu).",
    "rewards": "Verified outcome and reward of each solution.",
    "top_up_solutions": "Further samples of prompts with too few correct (or incorrect) ones.",
    "top_up_rewards": "Verified outcome and reward of each further sample.",
    "mix": "The curated training set: which samples, with which advantage R - c.",
    "checkpoint": "The policy after one pass of TOPR over the mix.",
    "eval_scores": "pass@1, pass@k, maj@k and more on the held-out prompts, with intervals.",
    "report": "What the iterations scored, why, and at which cost: one page, plots and tables.",
}
KINDS: Mapping[str, set[str]] = {
    "prompts": {"polars", "parquet"},
    "eval_prompts": {"polars", "parquet"},
    "base_policy": {"huggingface", "pytorch"},
    "solutions": {"huggingface", "parquet"},
    "rewards": {"polars", "parquet"},
    "top_up_solutions": {"huggingface", "parquet"},
    "top_up_rewards": {"polars", "parquet"},
    "mix": {"polars", "parquet"},
    "checkpoint": {"huggingface", "pytorch"},
    "eval_scores": {"huggingface", "parquet"},
    "report": {"matplotlib"},
}
TABLES: Mapping[str, Table] = {
    "prompts": PROMPTS,
    "eval_prompts": PROMPTS,
    "solutions": SOLUTIONS,
    "rewards": REWARDS,
    "top_up_solutions": SOLUTIONS,
    "top_up_rewards": REWARDS,
    "mix": MIX,
    "eval_scores": EVAL_SCORES,
}
RESOURCES = {"models", "data"}
MERGE = "merge"
"""Name of the last step of a fan-out, the one that makes the artifact."""
RETRY = dg.RetryPolicy(max_retries=2, delay=10, backoff=dg.Backoff.EXPONENTIAL)
"""Of the steps of a fan-out: an engine that crashed, a machine that went away."""
ACCELERATOR = "accelerator"
"""The pool of everything that loads a model; its limit is in dagster.yaml."""


class TOPRExperiment(dg.Component):
    """An experiment: prompts, then per iteration solutions, rewards, mix, checkpoint, scores.

    The YAML's `attributes` are `topr_pipeline.experiment.Experiment`; the folder's name is the
    experiment's.
    """

    def __init__(self, name: str, experiment: Experiment, root: Path):
        self.name, self.experiment, self.root = name, experiment, root

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The schema of `attributes`."""
        return Scheduled

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Resolve templates such as `{{ env.NAME }}` and name the experiment after its folder."""
        assert attributes is not None
        said = attributes.model_dump(exclude_unset=True)
        resolved = _resolved(said, context.resolution_context)
        return cls(
            context.path.name, Scheduled.model_validate(resolved), Path(context.project_root)
        )

    def nodes(self) -> dict[str, Node]:
        """The experiment's artifacts by key, parents before children."""
        return unroll(self.name, self.experiment, self.root)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The experiment's assets with their checks, and a job of its name."""
        return experiment_definitions(self.name, self.experiment, self.root)


def _resolved(value: Any, context: dg.ResolutionContext) -> Any:
    """`value` with its `{{ ... }}` filled in; texts without any stay as they are.

    Dagster's own resolution of a whole mapping takes "18" for a number and a line end for nothing.
    """
    match value:
        case str():
            return context.resolve_value(value) if "{{" in value else value
        case Mapping():
            return {key: _resolved(each, context) for key, each in value.items()}
        case list() | tuple():
            return [_resolved(each, context) for each in value]
    return value


def experiment_definitions(name: str, experiment: Experiment, root: Path) -> dg.Definitions:
    """Assets, checks, job and schedule of one experiment; needs the resources `models`, `data`."""
    assets = experiment_assets(name, experiment, root)
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*assets),
        description=experiment.description or None,
        tags={EXPERIMENT_TAG: name},
    )
    return dg.Definitions.merge(
        dg.Definitions(assets=assets, jobs=[job]), automation(name, experiment, root, job)
    )


def experiment_assets(
    name: str, experiment: Experiment, root: Path
) -> Sequence[dg.AssetsDefinition]:
    """The assets of one experiment, for `dg.materialize` in tests.

    They need the resources `models` (`RealModels` or `topr_pipeline.testing.FakeModels`) and `data`
    (the folder for artifacts). `root` is where relative paths in the experiment start from.
    """
    nodes = unroll(name, experiment, root)
    return [_asset(node, nodes, experiment, root) for node in nodes.values()]


def _asset(
    node: Node, nodes: Mapping[str, Node], experiment: Experiment, root: Path
) -> dg.AssetsDefinition:
    sampled = node.stage in ("solutions", "top_up_solutions")
    if sampled and experiment.sampling.shards > 1 and not experiment.is_offline(node.iteration):
        return _fanned_out(node, nodes, experiment, root)

    @dg.asset(
        **_spec(node, experiment),
        deps=[asset_key(parent) for parent in node.parents],
        required_resource_keys=RESOURCES,
        pool=ACCELERATOR if node.stage in USES_MODELS else None,
        # Prompts first: what is wrong with them is said before a model is loaded.
        op_tags={"dagster/priority": "1"} if "prompts" in node.stage else None,
    )
    def materialise(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        return _materialised(context, node, nodes, experiment, root)

    return materialise


def _fanned_out(
    node: Node, nodes: Mapping[str, Node], experiment: Experiment, root: Path
) -> dg.AssetsDefinition:
    """A solutions asset as a graph: steps that each sample a part into the store, then `merge`.

    Nothing passes between the steps but their order: they share the data folder.
    """
    spec = _spec(node, experiment)
    of, prefix = experiment.sampling.shards, node.key.replace("/", "__")
    checks = {check.get_python_identifier(): dg.Out(dg.Nothing) for check in spec["check_specs"]}
    parents = {parent.rsplit("/", 1)[-1]: parent for parent in node.parents}

    def part_op(part: int) -> Any:
        name = f"part_{part_name(part, of)}"

        @dg.op(
            name=f"{prefix}__{name}",
            ins=dict.fromkeys(parents, dg.In(dg.Nothing)),
            out=dg.Out(dg.Nothing),
            required_resource_keys=RESOURCES,
            retry_policy=RETRY,
            pool=ACCELERATOR,
        )
        def sample_part(context: dg.OpExecutionContext) -> None:
            models, place = context.resources.models, Place(root, Path(context.resources.data))
            with _no_retry():
                make_part(node, nodes, experiment, place, models, part, context.log.info)

        return sample_part.alias(name)

    @dg.op(
        name=f"{prefix}__{MERGE}",
        ins={"parts": dg.In(dg.Nothing)},
        out={"result": dg.Out(dg.Nothing), **checks},
        required_resource_keys=RESOURCES,
    )
    def merge(context: dg.OpExecutionContext) -> dg.MaterializeResult:
        return _materialised(context, node, nodes, experiment, root)

    ins = {n: dg.AssetIn(asset_key(p), dagster_type=dg.Nothing) for n, p in parents.items()}

    @dg.graph_asset(**spec, ins=ins)
    def solutions(**made: Any) -> Any:
        sampled = [part_op(i)(**made) for i in range(of)]
        merged = merge.alias(MERGE)(sampled)
        return {name: getattr(merged, name) for name in ("result", *checks)} if checks else merged

    return solutions


def _spec(node: Node, experiment: Experiment) -> dict[str, Any]:
    """What Dagster shows of an artifact, however it is made."""
    key = asset_key(node.key)
    group = f"iter_{node.iteration or 0:02d}" if node.stage != "report" else "report"
    return {
        "key": key,
        "code_version": node.code_version,
        "description": DESCRIPTIONS[node.stage],
        "group_name": f"{key.path[0]}_{group}",
        "kinds": KINDS[node.stage],
        "owners": list(experiment.owners) or None,
        "automation_condition": condition(experiment),
        "tags": {**experiment.tags, "topr/stage": node.stage},
        "metadata": _static_metadata(node.stage),
        "check_specs": [
            dg.AssetCheckSpec(check, asset=key, blocking=True)
            for check in CHECKS.get(node.stage, ())
        ],
    }


def _materialised(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    node: Node,
    nodes: Mapping[str, Node],
    experiment: Experiment,
    root: Path,
) -> dg.MaterializeResult:
    models, place = context.resources.models, Place(root, Path(context.resources.data))
    if isinstance(models, RealModels):
        models = replace(models, channel=PipesChannel(context))
    forced = node.key in context.run.tags.get(FORCE_TAG, "").split(",")
    with _no_retry():
        made = make(node, nodes, experiment, place, models, context.log.info, forced)
    return _result(asset_key(node.key), made)


@contextmanager
def _no_retry() -> Generator[None]:
    """What a user has to mend is not tried again."""
    try:
        yield
    except ToprError as error:
        raise dg.Failure(str(error), allow_retries=False) from None


def _result(key: dg.AssetKey, made: Made) -> dg.MaterializeResult:
    inspection = made.inspection
    metadata = {name: _metadata_value(value) for name, value in inspection.metadata.items()}
    if "rows" in metadata:
        metadata["dagster/row_count"] = metadata.pop("rows")
    return dg.MaterializeResult(
        metadata={
            **metadata,
            "seconds": made.manifest.seconds,
            "reused": made.reused,
            "headline": inspection.headline,
        },
        data_version=dg.DataVersion(made.manifest.data_version),
        check_results=[
            dg.AssetCheckResult(
                passed=check.passed,
                check_name=check.name,
                asset_key=key,
                description=check.message,
                metadata=dict(check.figures),
            )
            for check in inspection.checks
        ],
    )


def _static_metadata(stage: str) -> dict[str, Any]:
    if stage not in TABLES:
        return {}
    columns = [
        dg.TableColumn(name, str(dtype), description)
        for name, (dtype, description) in TABLES[stage].columns.items()
    ]
    return {"dagster/column_schema": dg.TableSchema(columns=columns)}


def _metadata_value(value: Value) -> Any:
    match value:
        case bytes():
            encoded = base64.b64encode(value).decode()
            return dg.MetadataValue.md(f"![plot](data:image/png;base64,{encoded})")
        case pl.DataFrame():
            records = [dg.TableRecord(_plain(r)) for r in value.to_dicts()]
            schema = dg.TableSchema([dg.TableColumn(name) for name in value.columns])
            return dg.MetadataValue.table(records, schema if value.is_empty() else None)
        case _:
            return value


def _plain(row: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    return {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in row.items()
    }
