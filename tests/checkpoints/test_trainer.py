import json
import math
from typing import Any

import polars as pl
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from topr_pipeline.checkpoints import describe, train, trainer
from topr_pipeline.checkpoints.folders import load
from topr_pipeline.checkpoints.logprobs import completion_logprobs
from topr_pipeline.checkpoints.selfcheck import prepared
from topr_pipeline.checkpoints.shared_prefix import GroupLogprobs
from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Training
from topr_pipeline.tables import MIX, TRAINING_LOG, content_hash

STEADY = Training(batch_size=8, learning_rate=1e-3)


def weights(folder):
    return load(folder, "float32")[0].state_dict()


def with_logprobs(mix: pl.DataFrame, change: pl.Expr) -> pl.DataFrame:
    return mix.with_columns(logprobs=pl.col("logprobs").list.eval(change))


def test_log_holds_every_step_and_the_last_batch_may_be_short(mix, start, tmp_path):
    seen = []
    trained = train(
        mix,
        start,
        tmp_path / "out",
        STEADY,
        0,
        lambda *done, **figures: seen.append((done, figures)),
    )
    log = TRAINING_LOG.conform(trained.log)
    assert log["step"].to_list() == [1, 2, 3]
    assert (log["positives"] + log["negatives"]).to_list() == [8, 8, 4]
    every_token = pl.col("prompt_token_ids").list.len() + pl.col("token_ids").list.len()
    assert log["tokens"].sum() == mix.select(every_token.sum()).item()
    assert log["learning_rate"].to_list() == [1e-3] * 3
    assert log["log_ratio_positive"][0] == pytest.approx(0, abs=1e-5)
    assert log["weight_negative"][0] == pytest.approx(1, abs=1e-5)
    assert trained.mean_clipped_ratio == pytest.approx(1, abs=1e-5)
    assert [done for done, _ in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert seen[1][1] == {"loss": log["loss"][0], "tokens_per_s": log["tokens_per_s"][0]}


@pytest.mark.parametrize("tokens", [1, 20, 60])
def test_weights_do_not_depend_on_the_forwards(mix, start, tmp_path, tokens):
    small = STEADY.model_copy(update={"tokens_per_forward": tokens})
    mix = mix.head(12)  # two steps, the second of four samples
    log = train(mix, start, tmp_path / "whole", STEADY, 0).log
    cut = train(mix, start, tmp_path / "cut", small, 0).log
    assert cut["loss"].to_list() == pytest.approx(log["loss"].to_list(), rel=1e-5)
    whole = weights(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "cut").items():
        torch.testing.assert_close(tensor, whole[name], rtol=1e-5, atol=1e-5)


def test_one_step_is_the_optimisers_own_on_the_mean_loss(mix, start, tmp_path):
    training = Training(
        objective="reinforce",
        optimizer="sgd",  # unlike Adam's, its step tells a mean from a sum
        batch_size=20,
        tokens_per_forward=50,
        learning_rate=0.1,
        max_grad_norm=1e9,
    )
    train(mix, start, tmp_path / "out", training, 0)
    model, _ = load(start, "float32")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logprob_B = completion_logprobs(
        model, mix["prompt_token_ids"].to_list(), mix["token_ids"].to_list()
    ).logprob_B
    advantage_B = torch.tensor(mix["advantage"].to_list())
    length_B = torch.tensor(mix["token_ids"].list.len().to_list())
    (-(advantage_B * logprob_B / length_B).mean()).backward()
    optimizer.step()
    for name, tensor in weights(tmp_path / "out").items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"optimizer": "adafactor"},
        {"optimizer": "sgd"},
        {"dtype": "bfloat16"},
        {"shuffle": "samples"},
        {"gradient_checkpointing": True},
    ],
    ids=str,
)
def test_equal_inputs_give_equal_bytes(mix, start, tmp_path, changed):
    training = STEADY.model_copy(update=changed)
    for name in "ab":
        train(mix, start, tmp_path / name, training, 3)
    assert content_hash(tmp_path / "a") == content_hash(tmp_path / "b") != content_hash(start)


@pytest.mark.parametrize("shares_prefix", [True, False])
def test_checkpointing_computes_each_layer_again_and_changes_nothing(
    mix, start, tmp_path, monkeypatch, shares_prefix
):
    calls = []
    forward = LlamaDecoderLayer.forward

    def counted(self, *args, **kwargs):
        calls.append(torch.is_grad_enabled())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", counted)
    if not shares_prefix:
        monkeypatch.setattr(trainer, "GroupLogprobs", lambda: GroupLogprobs(shares_prefix=False))
    found = {}
    for again in (False, True):
        calls.clear()
        training = STEADY.model_copy(update={"gradient_checkpointing": again})
        train(mix, start, tmp_path / str(again), training, 0)
        found[again] = calls.count(True)
    # Three steps of one forward and one layer each; under a checkpoint, in backward once more.
    assert found == {False: 3, True: 6}
    assert content_hash(tmp_path / "True") == content_hash(tmp_path / "False")


def test_bfloat16_computes_coarsely_keeps_fp32_weights_and_does_not_stay_on(mix, start, tmp_path):
    coarse = STEADY.model_copy(update={"dtype": "bfloat16"})
    trainings = {"before": STEADY, "coarse": coarse, "after": STEADY}
    logs = {name: train(mix, start, tmp_path / name, t, 0).log for name, t in trainings.items()}
    assert content_hash(tmp_path / "before") == content_hash(tmp_path / "after")
    losses = [logs[name]["loss"][0] for name in ("before", "coarse")]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], abs=0.02)
    assert describe(tmp_path / "coarse")["dtype"] == "F32"


def test_another_seed_is_another_order_and_so_other_weights(mix, start, tmp_path):
    for name, seed in (("a", 3), ("b", 4)):
        train(mix, start, tmp_path / name, STEADY, seed)
    assert content_hash(tmp_path / "a") != content_hash(tmp_path / "b")


def test_only_model_and_tokenizer_are_written_and_no_path_among_them(mix, start, tmp_path):
    train(mix, start, tmp_path / "out", STEADY, 0)
    files = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert set(files) == {path.name for path in start.iterdir()}
    changed = {
        name for name, path in files.items() if path.read_bytes() != (start / name).read_bytes()
    }
    assert changed == {"model.safetensors"}
    assert "_name_or_path" not in json.loads(files["config.json"].read_text())
    assert describe(tmp_path / "out")["dtype"] == "F32"


@pytest.mark.parametrize("objective", ["topr", "reinforce", "tis", "importance_sampling"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_positive_becomes_likelier_and_a_negative_less_likely(
    mix, start, tmp_path, objective, sign
):
    training = Training(objective=objective, batch_size=1, epochs=3, learning_rate=3e-3)
    sample = mix.filter(pl.col("advantage") == sign).head(1)
    train(sample, start, tmp_path / "out", training, 0)
    model, _ = load(tmp_path / "out", "float32")
    after = completion_logprobs(
        model, sample["prompt_token_ids"].to_list(), sample["token_ids"].to_list()
    ).logprob_B
    assert sign * (after.item() - sample["logprob"].item()) > 0.05


def test_dropping_the_negatives_is_training_on_the_positives_alone(mix, start, tmp_path):
    training = STEADY.model_copy(update={"objective": "positives", "batch_size": 20})
    log = train(mix, start, tmp_path / "out", training, 0).log
    assert log["weight_negative"].to_list() == [0.0]
    assert log["vanished_negative"].to_list() == [1.0]
    positives = mix.filter(pl.col("advantage") > 0)
    expected = positives.select(-(pl.col("logprob") / pl.col("token_ids").list.len()).sum() / 20)
    assert log["loss"][0] == pytest.approx(expected.item(), rel=1e-4)


def test_objectives_of_constant_weight_need_no_behaviour_log_probs(mix, start, tmp_path):
    mix = mix.with_columns(logprobs=pl.lit(None), logprob=pl.lit(None))
    trained = train(
        mix, start, tmp_path / "out", STEADY.model_copy(update={"objective": "reinforce"}), 0
    )
    assert trained.mean_clipped_ratio is None
    assert trained.log["log_ratio_positive"].null_count() == 3
    assert trained.log["loss"].is_finite().all()


@pytest.mark.parametrize("shift", [0.1, -0.1])
def test_log_probs_that_are_not_the_policys_own_stop_before_step_one(mix, start, tmp_path, shift):
    with pytest.raises(
        ToprError, match=r"mean clipped ratio.*Most likely: .*temperature.*else: .*template.*dtype"
    ) as error:
        train(with_logprobs(mix, pl.element() + shift), start, tmp_path / "out", STEADY, 0)
    assert "training.ratio_limits" in str(error.value)
    assert not (tmp_path / "out").exists()


CAUSES = {
    "renormalised": (pl.element() + 0.1, "Most likely: log-probs taken after temperature"),
    "another policy": (pl.element() - 3, "Most likely: another chat template"),
    "rounded": (pl.element().round(0), "Most likely: another dtype"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_likeliest_cause_is_named_first(mix, start, tmp_path, cause):
    change, said = CAUSES[cause]
    with pytest.raises(ToprError, match=said):
        train(with_logprobs(mix, change), start, tmp_path / "out", STEADY, 0)


def test_recomputed_log_probs_are_the_starting_policys_own(mix, start, tmp_path):
    own = train(mix, start, tmp_path / "own", STEADY, 0).log
    again = STEADY.model_copy(update={"recompute_behaviour": True})
    log = train(with_logprobs(mix, pl.element() - 3), start, tmp_path / "again", again, 0).log
    for column in ("loss", "weight_negative", "log_ratio_positive"):
        assert log[column].to_list() == pytest.approx(own[column].to_list(), rel=1e-4, abs=1e-5)


def test_recomputing_leaves_the_log_probs_of_older_iterations_alone(mix, start, tmp_path):
    again = STEADY.model_copy(update={"recompute_behaviour": True, "batch_size": 20})
    off = with_logprobs(mix.head(10), pl.element() + 1).with_columns(iteration=pl.lit(0, pl.Int32))
    log = train(pl.concat([off, mix.tail(10)]), start, tmp_path / "out", again, 0).log
    negative = off.filter(pl.col("advantage") < 0)["token_ids"].list.len()
    mean = -negative.sum() / 10  # half of the ten negatives are off, by 1 a token
    assert log["log_ratio_negative"][0] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_log_probs_of_another_policy_are_neither_checked_nor_recomputed(
    mix, start, tmp_path, recompute
):
    training = STEADY.model_copy(update={"recompute_behaviour": recompute, "batch_size": 20})
    off = with_logprobs(mix, pl.element() + 0.1)
    trained = train(off, start, tmp_path / "out", training, 0, on_policy=False)
    ratio_B = (-0.1 * mix["token_ids"].list.len()).exp()
    assert trained.mean_clipped_ratio == pytest.approx(ratio_B.mean(), abs=1e-4)


def test_older_iterations_do_not_count_in_the_self_check(mix, start, tmp_path):
    old = with_logprobs(mix.head(10), pl.element() + 1)
    mixed = pl.concat([old.with_columns(iteration=pl.lit(0, pl.Int32)), mix.tail(10)])
    trained = train(mixed, start, tmp_path / "out", STEADY, 0)
    assert trained.mean_clipped_ratio == pytest.approx(1, abs=1e-5)


def test_a_loss_that_is_not_finite_stops_with_the_samples_and_writes_nothing(mix, start, tmp_path):
    broken = pl.col("prompt_id") == "p7"
    mix = mix.with_columns(  # finite here, inf in fp32
        advantage=pl.when(broken).then(pl.lit(1e39)).otherwise("advantage")
    )
    with pytest.raises(ToprError, match=r"loss -?(inf|nan) at step \d; .*\(p7, 0\);") as error:
        train(mix, start, tmp_path / "out", STEADY, 0)
    assert "p8" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_gradient_that_is_not_finite_stops_with_the_whole_batch(mix, start, tmp_path):
    mix = mix.with_columns(advantage=pl.lit(1e25))  # its square is inf in fp32
    with pytest.raises(ToprError, match="gradient norm inf at step 1") as error:
        train(mix, start, tmp_path / "out", STEADY, 0)
    named = str(error.value).split("batch: ")[1].split(";")[0]
    assert named.count("(p") == STEADY.batch_size
    assert not (tmp_path / "out").exists()


BAD_ROWS = {
    "no advantage": ({"advantage": pl.lit(None, pl.Float64)}, "a finite R - c"),
    "empty completion": ({"token_ids": pl.col("token_ids").list.head(0)}, "one token or more"),
    "empty prompt": (
        {"prompt_token_ids": pl.col("prompt_token_ids").list.head(0)},
        "one token or more",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_cannot_be_trained_on_is_named_before_the_model_is_loaded(mix, tmp_path, name):
    changes, accepted = BAD_ROWS[name]
    bad = pl.col("prompt_id") == "p7"
    mix = mix.with_columns(
        **{column: pl.when(bad).then(new).otherwise(column) for column, new in changes.items()}
    )
    with pytest.raises(ToprError, match=rf"{next(iter(changes))}.*prompt_id p7.*{accepted}"):
        train(mix, tmp_path / "no such policy", tmp_path / "out", STEADY, 0)


NULL, NAN = pl.lit(None, pl.Float32), pl.lit(math.nan, pl.Float32)
UNKNOWN = {
    "none": pl.lit(None, pl.List(pl.Float32)),
    "too few": pl.col("logprobs").list.head(1),
    "null": pl.col("logprobs").list.eval(pl.element() + NULL),
    "NaN": pl.col("logprobs").list.eval(pl.element() * math.nan),
    "-inf": pl.col("logprobs").list.eval(pl.element() - math.inf),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_unknown_log_probs_above_the_share_stop_and_below_it_are_told(
    mix, start, tmp_path, kind, caplog
):
    bad = pl.col("prompt_id") == "p7"
    mix = mix.with_columns(logprobs=pl.when(bad).then(UNKNOWN[kind]).otherwise("logprobs"))
    missing = mix.filter(bad)["token_ids"].list.len().item()
    said = rf"{missing} of \d+ completion tokens .* in 1 rows.*prompt_id p7"
    with pytest.raises(ToprError, match=rf"{said}.*training.max_missing_logprobs \(0.01\)"):
        train(mix, tmp_path / "no such policy", tmp_path / "out", STEADY, 0)
    tolerant = STEADY.model_copy(update={"max_missing_logprobs": 0.5})
    log = train(mix, start, tmp_path / "out", tolerant, 0).log
    assert "their ratio counts as 1" in caplog.text
    assert log["loss"].is_finite().all()


PREPARED: dict[str, tuple[Any, str]] = {
    "no table": (lambda mix: None, "returned a NoneType"),
    "no column": (lambda mix: mix.drop("advantage"), r"dropped the columns \['advantage'\]"),
    "no row": (lambda mix: mix.clear(), "left no row of 20"),
    "NaN": (lambda mix: mix.with_columns(advantage=math.nan), "advantage nan at iteration 1"),
    "zero": (lambda mix: mix.with_columns(advantage=0.0), "advantages of 0 alone"),
}


@pytest.mark.parametrize("name", PREPARED)
def test_what_an_objective_leaves_of_the_mix_is_checked(mix, name):
    prepare, said = PREPARED[name]
    with pytest.raises(ToprError, match=rf"training.objective topr: its `prepare` .*{said}"):
        prepared(prepare, mix, STEADY)
    assert prepared(lambda mix: mix, mix, STEADY).equals(mix)


def test_prompts_of_equal_rewards_leave_grpo_nothing_before_the_model_is_loaded(mix, tmp_path):
    with pytest.raises(ToprError, match=r"training.objective grpo.*advantages of 0 alone"):
        train(mix, tmp_path / "no policy", tmp_path / "out", Training(objective="grpo"), 0)


def test_an_empty_mix_is_refused_before_the_model_is_loaded(tmp_path):
    with pytest.raises(ToprError, match="no rows to train on"):
        train(MIX.empty(), tmp_path / "no such policy", tmp_path / "out", STEADY, 0)


def test_warm_up_and_cosine_shape_the_learning_rate(mix, start, tmp_path):
    training = Training(
        batch_size=4, learning_rate=1e-3, schedule="cosine", warmup_steps=2, objective="reinforce"
    )
    rates = train(mix, start, tmp_path / "out", training, 0).log["learning_rate"].to_list()
    assert rates[:3] == pytest.approx([0.0, 5e-4, 1e-3])
    assert rates[3] > rates[4] > 0
