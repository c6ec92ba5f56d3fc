"""How each artifact is made: what its stage reads, calls and writes.

A maker writes its artifact to `work.out` (a temporary name) and returns figures, small JSON values
that are kept in the manifest. It knows paths and specs; the rooms know neither.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from topr_pipeline import mixes, prompts, rewards, solutions
from topr_pipeline.checkpoints.jobs import BasePolicyJob, TrainJob
from topr_pipeline.checkpoints.packages import check_packages
from topr_pipeline.components import offline
from topr_pipeline.components.graph import Node
from topr_pipeline.components.models import Models
from topr_pipeline.components.reporting import run_of
from topr_pipeline.components.samples import note_cost, noted_costs, part_name, sampling_of, store
from topr_pipeline.evals import score
from topr_pipeline.experiment import Experiment
from topr_pipeline.progress import Progress
from topr_pipeline.report import write_report
from topr_pipeline.tables import EVAL_SCORES, PROMPTS, REWARDS, SOLUTIONS


@dataclass(frozen=True)
class Work:
    """Everything that a maker gets."""

    node: Node
    nodes: Mapping[str, Node]
    experiment: Experiment
    root: Path
    data: Path
    out: Path
    inputs: Mapping[str, str]
    models: Models
    progress: Progress

    def input(self, stage: str) -> Node:
        """The one parent of that stage; `checkpoint` is the base policy's too, `solutions` those
        of a top-up.
        """
        also = {"checkpoint": "base_policy", "solutions": "top_up_solutions"}
        wanted = {stage, also.get(stage)}
        (found,) = [p for p in self._parents if p.stage in wanted]
        return found

    def inputs_of(self, stage: str) -> list[Node]:
        """All parents of that stage, in order."""
        return [p for p in self._parents if p.stage == stage]

    def path(self, stage: str) -> Path:
        """The artifact of the one parent of that stage."""
        return self.input(stage).path(self.data)

    @property
    def _parents(self) -> list[Node]:
        return [self.nodes[key] for key in self.node.parents]

    def job(self) -> dict[str, Any]:
        """What a job is told besides its inputs."""
        experiment, _, artifact = self.node.key.partition("/")
        return {
            "name": self.node.key,
            "folder": self.out,
            "state": state_path(self.node, self.data),
            "logs": self.data / experiment / "runs" / Path(artifact).parent,
            "threads": self.experiment.threads,
        }

    def seed(self, what: str) -> int:
        """A seed of its own for each use, derived from the experiment's."""
        return self.experiment.seed_for(what)


Figures = dict[str, Any]


def state_path(node: Node, data: Path) -> Path:
    """What a training that is cut off goes on from, until its artifact is in place."""
    path = node.path(data)
    return path.with_name(f".{path.name}{STATE}")


STATE = ".state"


def check_inputs(experiment: Experiment, root: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Load both prompt sets and find what is wrong before any model is loaded.

    Returns (prompts, eval_prompts) as the policy reads them. Raises ToprError for what the prompts
    room refuses (files, rows, overlap, examples), a policy that is not there, a chat template that
    it lacks, prompts that leave no room in its context, and packages that `training` wants and that
    are not installed. Of the policy, configuration and tokenizer are read at most.
    """
    from topr_pipeline.checkpoints import sources

    check_packages(experiment.training)
    policy, template, seed = experiment.policy, experiment.template, experiment.seed
    others = offline.left_out(experiment)
    train = prompts.load_prompts(experiment.prompts, root, seed, "prompts", others)
    held_out = prompts.load_prompts(experiment.eval_prompts, root, seed, "eval_prompts")
    train = prompts.apart(train, held_out, experiment.prompts)
    shots = prompts.load_examples(template, root)
    prompts.check_examples(shots, held_out)
    sources.check_there(policy, root)
    chat = sources.chat_of(policy, root) if template.chat else None
    if not (experiment.offline and experiment.offline.rendered):
        train = prompts.rendered(train, template, shots, chat)
    held_out = prompts.rendered(held_out, template, shots, chat)
    if experiment.sampling.engine != "fake":  # it reads no policy
        _check_room(train, held_out, experiment, root)
    return train, held_out


def _check_room(
    train: pl.DataFrame, held_out: pl.DataFrame, experiment: Experiment, root: Path
) -> None:
    from topr_pipeline.checkpoints import sources

    sampling, own = experiment.sampling, experiment.evaluation.max_tokens
    of_policy = sources.context_of(experiment.policy, root)
    context = sampling.context(of_policy)
    if context is None:
        return
    limit = context, "policy" if context == of_policy else "sampling.vllm.max_model_len"
    count = sources.token_counter(experiment.policy, root)
    key = "sampling.max_tokens"
    if not experiment.is_offline(experiment.iterations):  # else nothing is sampled of them
        prompts.check_context(train, "prompts", sampling.max_tokens, key, *limit, count)
    key, longest = (key, sampling.max_tokens) if own is None else ("evaluation.max_tokens", own)
    prompts.check_context(held_out, "eval_prompts", longest, key, *limit, count)


def make_prompts(work: Work) -> Figures:
    """Load the training prompts."""
    train, _ = check_inputs(work.experiment, work.root)
    offline.check(work.experiment, work.root, train)
    PROMPTS.write(train, work.out)
    return {}


def make_eval_prompts(work: Work) -> Figures:
    """Load the held-out prompts."""
    _, held_out = check_inputs(work.experiment, work.root)
    PROMPTS.write(held_out, work.out)
    return {}


def make_base_policy(work: Work) -> Figures:
    """Prepare the base policy, after the prompts are known to be sound."""
    train, _ = check_inputs(work.experiment, work.root)
    offline.check(work.experiment, work.root, train)
    from topr_pipeline.checkpoints import sources

    job = BasePolicyJob(
        policy=sources.absolute(work.experiment.policy, work.root),
        seed=work.seed("base_policy"),
        **work.job(),
    )
    work.models.base_policy(job, work.progress)
    return {}


def make_solutions(work: Work) -> Figures:
    """Sample the iteration's prompts from the previous checkpoint, or merge what parts sampled.

    Nothing is sampled where the solutions are there already.
    """
    if work.experiment.is_offline(work.node.iteration):
        return offline.make_solutions(work, _iteration_prompts(work))
    asked = _asked_of_iteration(work)
    sampled = solutions.sample(asked, work.models.engine(asked.sampling), work.out, work.progress)
    figures = _sampling_figures(sampled, [sampled.cost, *noted_costs(work.node, work.data)])
    figures["prompts"] = asked.prompts.height
    return {**figures, "agreement": asdict(work.models.agreement(work.out, asked.policy))}


def sample_part(work: Work, part: int, of: int) -> None:
    """Sample a part of what `make_solutions` will then find in the store."""
    asked = _asked_of_iteration(work)
    engine = work.models.engine(asked.sampling)
    cost = solutions.sample_part(asked, engine, part, of, work.progress)
    note_cost(work.node, work.data, part_name(part, of), cost)


def _asked_of_iteration(work: Work) -> solutions.Asked:
    """The first samples of the iteration's prompts, or the further ones of its top-up."""
    chosen, top_up = _iteration_prompts(work), work.experiment.top_up
    if work.node.stage == "solutions" or top_up is None:
        return _asked(work, chosen)
    more_P = solutions.further_samples(chosen, REWARDS.read(work.path("rewards")), top_up)
    return replace(_asked(work, chosen.filter(more_P > 0)), more_P=more_P[more_P > 0])


def _iteration_prompts(work: Work) -> pl.DataFrame:
    return prompts.for_iteration(
        PROMPTS.read(work.path("prompts")),
        work.experiment.sampling.prompts_per_iteration,
        work.node.iteration or 0,
        work.experiment.seed,
    )


def _asked(work: Work, chosen: pl.DataFrame) -> solutions.Asked:
    policy = work.input("checkpoint")
    sampling, seed = sampling_of(work.node, work.experiment)
    return solutions.Asked(
        chosen,
        sampling,
        policy.path(work.data),
        work.inputs[policy.key],
        store(work.node.key, work.data),
        seed,
    )


def _sampling_figures(sampled: solutions.Sampled, costs: Sequence[solutions.Cost]) -> Figures:
    return {
        "rows": sampled.rows,
        "tokens": sampled.tokens,
        "finish_reasons": sampled.finish_reasons,
        "sampled": sum(c.samples for c in costs),
        "sampled_tokens": sum(c.tokens for c in costs),
        "sampling_s": sum(c.seconds for c in costs),
    }


def make_rewards(work: Work) -> Figures:
    """Verify the iteration's solutions or those of its top-up, unless their rewards are given."""
    given = work.experiment.offline and work.experiment.offline.columns.reward
    if given and work.experiment.is_offline(work.node.iteration):
        return offline.make_rewards(work)
    solutions_table = _columns(work.path("solutions"), VERIFIED)
    return _verified(work, solutions_table, PROMPTS.read(work.path("prompts")), work.out)[1]


def _verified(
    work: Work, answers: pl.DataFrame, asked: pl.DataFrame, out: Path
) -> tuple[pl.DataFrame, Figures]:
    """The rewards table, written to `out`, and how its verdicts came about."""
    table, report = rewards.verify_reported(
        answers, asked, work.experiment.rewards, work.progress, work.data / VERDICTS
    )
    REWARDS.write(table, out)
    return table, {
        "pairs": report.pairs,
        "duplicates_saved": report.saved,
        "judged": report.judged,
        "cached": report.cached,
        "stopped": report.stopped,
        "verifying_s": report.seconds,
        "slowest": [[p.seconds, p.gold, p.answer] for p in report.slowest],
    }


VERDICTS = ".verdicts"
"""Folder of slow verdicts below the data root: pairs of gold and answer recur over experiments."""

VERIFIED = ("prompt_id", "sample_index", "text", "finish_reason")


def _columns(solutions: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Columns of a solutions table, which may be too large to be read whole."""
    return SOLUTIONS.scan(solutions).select(columns).collect()


def make_mix(work: Work) -> Figures:
    """Curate what is trained on, of this iteration and of those that are replayed."""
    first, further = _rewarded(work, ""), _rewarded(work, "top_up_")
    sources = [mixes.Source(k, *files, further.get(k)) for k, files in first.items()]
    return asdict(mixes.curate(sources, work.experiment.mix, work.out, work.seed("mix")))


def _rewarded(work: Work, kind: str) -> dict[int, tuple[Path, Path]]:
    """By iteration the files of its solutions and rewards."""
    tables = (work.inputs_of(f"{kind}{stage}") for stage in ("solutions", "rewards"))
    pairs = zip(*tables, strict=True)
    return {s.iteration or 0: (s.path(work.data), r.path(work.data)) for s, r in pairs}


def make_checkpoint(work: Work) -> Figures:
    """Train the previous checkpoint on the mix."""
    job = TrainJob(
        mix=work.path("mix"),
        start=work.path("checkpoint"),
        training=work.experiment.training,
        on_policy=work.experiment.is_on_policy(work.node.iteration),
        seed=work.seed(f"training {work.node.iteration}"),
        **work.job(),
    )
    trained = work.models.train(job, work.progress)
    finite = trained.log.select(pl.col("loss", "grad_norm").is_finite().all()).row(0)
    return {
        "mean_clipped_ratio": trained.mean_clipped_ratio,
        "steps": trained.log.height,
        "finite": all(finite),
    }


def make_eval_scores(work: Work) -> Figures:
    """Sample and verify the held-out prompts, and score them."""
    experiment = work.experiment
    held_out = PROMPTS.read(work.path("eval_prompts"))
    asked, table = _asked(work, held_out), work.out / "solutions.parquet"
    sampled = solutions.sample(asked, work.models.engine(asked.sampling), table, work.progress)
    answers, out = _columns(table, VERIFIED), work.out / "rewards.parquet"
    verified, verifying = _verified(work, answers, held_out, out)
    tokens = _columns(table, ("prompt_id", "sample_index", "token_ids"))
    scores = score(verified, tokens, experiment.evaluation, work.seed("bootstrap"))
    EVAL_SCORES.write(scores, work.out / "scores.parquet")
    return {**verifying, **_sampling_figures(sampled, [sampled.cost])}


def make_report(work: Work) -> Figures:
    """Draw and tell what the iterations scored, why, and at which cost."""
    name = work.node.key.partition("/")[0]
    write_report(work.out, [run_of(name, work.nodes, work.experiment, work.data)])
    return {}


MIX_FIGURES = ("rows", "baseline", "positive_share", "effective_positive_share")

MAKERS: Mapping[str, Callable[[Work], Figures]] = {
    "prompts": make_prompts,
    "eval_prompts": make_eval_prompts,
    "base_policy": make_base_policy,
    "solutions": make_solutions,
    "rewards": make_rewards,
    "top_up_solutions": make_solutions,
    "top_up_rewards": make_rewards,
    "mix": make_mix,
    "checkpoint": make_checkpoint,
    "eval_scores": make_eval_scores,
    "report": make_report,
}
