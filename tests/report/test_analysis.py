from dataclasses import replace

import pytest
import yaml

from topr_pipeline.report.analysis import (
    analysed,
    cost_table,
    differing_keys,
    effective_yaml,
    mix_table,
)
from topr_pipeline.report.flips import counts, examples, right_by_iteration


def test_votes_that_changed_are_counted_by_iteration(make_run):
    table = counts(right_by_iteration(make_run()))
    assert table.rows() == [(1, 1, 1, 1, 1), (2, 1, 0, 2, 1)]
    assert table.columns == ["iteration", "gained", "lost", "kept_right", "kept_wrong"]


def test_examples_are_of_the_last_step_and_of_prompts_that_went_there_and_back(make_run):
    run = make_run()
    gained, back = examples(run, right_by_iteration(run))
    assert (gained.kind, back.kind) == ("gained", "back")
    assert [(c.iteration, c.right, c.rate, c.answer) for c in gained.completions] == [
        (1, False, 0.0, "5"),
        (2, True, 1.0, "7"),
    ]
    assert [c.iteration for c in back.completions] == [0, 1, 2]
    assert gained.prompt.endswith("r?")
    assert gained.gold == "7"


def test_an_example_shows_a_completion_that_is_as_the_vote_is(make_run):
    run = make_run(solved={0: {"q": "57"}, 1: {"q": "77"}})
    (gained,) = examples(run, right_by_iteration(run))  # a tie goes to the first answer, 5
    assert [c.answer for c in gained.completions] == ["5", "7"]
    assert gained.completions[0].rate == 0.5


@pytest.mark.parametrize("solved", [{}, {0: {"p": "77"}}])
def test_fewer_than_two_evals_have_no_flips(make_run, solved):
    run = make_run(solved=solved)
    right = right_by_iteration(run)
    assert counts(right).is_empty()
    assert examples(run, right) == []


def test_mixes_are_told_with_the_rows_of_earlier_iterations(make_run):
    second = mix_table(make_run()).row(1, named=True)
    assert (second["rows"], second["of earlier iterations"], second["p~"]) == (8, 3, 0.5)


def test_costs_are_summed_and_tokens_told_per_solved_prompt(make_run):
    base, first, _ = cost_table(make_run()).iter_rows(named=True)
    assert first["all, s"] == 7.0
    assert first["prompts solved"] == 4  # 2 half solved, 2 always
    assert first["tokens per solved prompt"] == 100 / 4
    assert base["tokens per solved prompt"] is None


def test_the_effective_yaml_has_the_defaults(make_run):
    said = yaml.safe_load(effective_yaml(make_run()))
    assert said["training"]["objective"] == "topr"
    assert said["evaluation"]["bootstrap"] == 50


def test_only_keys_that_differ_are_compared(make_run):
    rows = differing_keys([make_run("one"), make_run("two", mix={"baseline": 0.3})])
    assert rows == [["mix.baseline", "null", "0.3"]]


def test_what_is_missing_and_what_is_not_compared_is_noted(make_run):
    one = replace(make_run("one"), notes=["iter_02/mix is missing: never made"])
    two = make_run("two")
    two = replace(two, eval_prompts=two.eval_prompts.clear())
    assert analysed([one, two]).notes == [
        "one: iter_02/mix is missing: never made",
        "two is not compared with one: they share no eval prompt",
    ]
