import re
from dataclasses import replace

import pytest

from topr_pipeline.errors import ToprError
from topr_pipeline.prompts import Noise, Problem, demonstrations, normalise, problems, vocabulary
from topr_pipeline.prompts.word_problems import HARD_VERBS, NAMES, THINGS, VERBS, split_of

NO_NOISE = Noise(0, 0, 0, 0, 0)
EXAMPLE = Problem("Ana", "cards", 9, (("doubles", 2), ("loses", 6), ("finds", 4)))
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+) \.")


def test_problem_reads_as_documented():
    assert EXAMPLE.prompt == "Ana has 9 cards , doubles them , loses 6 , finds 4 . How many ?"
    assert EXAMPLE.solution == "9 * 2 = 18 . 18 - 6 = 12 . 12 + 4 = 16 . The answer is 16"
    assert EXAMPLE.gold == "16"


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("steps", [(1, 1), (1, 3), (5, 5)])
def test_problems_are_distinct_and_stay_in_range(split, steps):
    found = problems(200, split, steps, seed=1)
    assert len({problem.prompt for problem in found}) == 200
    assert {problem.split for problem in found} == {split}
    assert {len(problem.steps) for problem in found} == set(range(steps[0], steps[1] + 1))
    for problem in found:
        value = problem.start
        for before, sign, operand, result in EQUATION.findall(problem.solution):
            exact = {
                "+": int(before) + int(operand),
                "-": int(before) - int(operand),
                "*": int(before) * int(operand),
                "/": int(before) / int(operand),
            }
            assert int(before) == value
            assert exact[sign] == int(result)
            assert 1 <= int(operand) <= 9
            assert 0 <= int(result) <= 20
            value = int(result)
        assert problem.gold == str(value)


def test_problems_depend_on_the_seed_and_begin_alike():
    assert problems(20, "train", (1, 3), 0) == problems(50, "train", (1, 3), 0)[:20]
    assert problems(20, "train", (1, 3), 0) != problems(20, "train", (1, 3), 1)


def test_every_token_is_in_the_vocabulary():
    words = vocabulary()
    assert len(words) == len(set(words)) <= 110
    wild = Noise(0.5, 0.5, 0.5, 0.3, 0.5)
    texts = [" ".join(pair) for pair in demonstrations(2000, (1, 5), 0, wild)]
    texts += [f"{p.prompt} {p.solution}" for p in problems(500, "eval", (1, 5), 0)]
    unused = set(words) - {token for text in texts for token in text.split(" ")}
    assert {token for text in texts for token in text.split(" ")} <= set(words)
    assert unused <= {str(number) for number in range(21, 41)}


def test_split_is_the_same_on_every_machine_and_a_sixth_is_eval():
    assert EXAMPLE.split == "eval"
    assert replace(EXAMPLE, start=8).split == "train"
    seen = {(p.start, p.steps): p.split for p in problems(300, "eval", (1, 3), 0)}
    assert seen == {structure: split_of(*structure) for structure in seen}
    structures = [(s, ((v, o),)) for s in range(2, 10) for v, (_, os) in VERBS.items() for o in os]
    share = sum(split_of(*s) == "eval" for s in structures) / len(structures)
    assert 0.12 < share < 0.22


def test_no_eval_problem_is_trained_on_under_another_name_or_object():
    def bare(prompt: str) -> str:
        dressing = "|".join([*NAMES, *THINGS])
        return normalise(re.sub(rf"\b({dressing})\b", "", prompt))

    evaluated = {bare(p.prompt) for p in problems(1000, "eval", (1, 2), 3)}
    trained = {bare(p.prompt) for p in problems(1000, "train", (1, 2), 3)}
    shown = {bare(prompt) for prompt, _ in demonstrations(1000, (1, 2), 3)}
    assert not evaluated & (trained | shown)
    assert trained & shown


@pytest.mark.parametrize(
    ("split", "key", "exist"), [("eval", "eval_prompts", 11430), ("train", "prompts", 52740)]
)
def test_too_large_a_count_says_how_many_problems_there_are(split, key, exist):
    with pytest.raises(ToprError, match=rf"{key}\.count: 60000.*there are \d+;") as error:
        problems(60_000, split, (1, 1), 0, key)
    assert f"split {split} there are {exist};" in str(error.value)


def test_all_problems_that_exist_can_be_had(monkeypatch):
    monkeypatch.setattr("topr_pipeline.prompts.word_problems.NAMES", ["Ana"])
    monkeypatch.setattr("topr_pipeline.prompts.word_problems.THINGS", ["cards"])
    with pytest.raises(ToprError, match="there are 127;"):
        problems(128, "eval", (1, 1), 0)
    assert len(set(problems(127, "eval", (1, 1), 0))) == 127


def test_demonstrations_without_noise_are_the_solutions():
    for prompt, completion in demonstrations(100, (1, 3), 0, NO_NOISE):
        results = EQUATION.findall(completion)
        assert len(results) == prompt.count(",")
        assert completion.endswith(f". The answer is {results[-1][3]}")
        assert all(right(equation) for equation in results)


def right(equation: tuple[str, str, str, str]) -> bool:
    before, sign, operand, result = equation
    python = f"min(max({before} {sign.replace('/', '//')} {operand}, 0), 40)"
    return eval(python) == int(result)


def noisy(steps: tuple[int, int] = (2, 3), **noise: float) -> list[tuple[str, str]]:
    return demonstrations(2000, steps, 0, replace(NO_NOISE, **noise))


def test_wrong_results_are_as_frequent_as_asked_for():
    equations = [
        e for _, completion in noisy(wrong_result=0.1) for e in EQUATION.findall(completion)
    ]
    assert sum(not right(e) for e in equations) / len(equations) == pytest.approx(0.1, abs=0.02)


def test_wrong_operations_are_frequent_on_the_hard_verbs():
    def share_wrong(hard: bool) -> float:
        wrong = [
            EQUATION.findall(completion)[0][1] != VERBS[verb][0]
            for prompt, completion in noisy((1, 1), wrong_operation=0.1, wrong_operation_hard=0.65)
            if ((verb := prompt.split(" , ")[1].split()[0]) in HARD_VERBS) == hard
        ]
        return sum(wrong) / len(wrong)

    assert share_wrong(hard=True) == pytest.approx(0.65, abs=0.07)
    assert share_wrong(hard=False) == pytest.approx(0.1, abs=0.03)


def test_dropped_steps_are_missing_and_the_rest_goes_on():
    pairs = noisy((3, 3), dropped_step=0.06)
    missing = sum(3 - len(EQUATION.findall(completion)) for _, completion in pairs)
    assert missing / (3 * len(pairs)) == pytest.approx(0.06, abs=0.015)


def test_missing_answer_ends_after_the_last_step():
    completions = [completion for _, completion in noisy(no_answer=0.2)]
    unsaid = [c for c in completions if "answer" not in c]
    assert len(unsaid) / len(completions) == pytest.approx(0.2, abs=0.03)
    assert all(re.search(r"= \d+ \.$", c) for c in unsaid)


def test_errors_carry_on_to_the_stated_answer_and_no_completion_is_empty():
    for prompt, completion in demonstrations(2000, (1, 3), 0, Noise(0.5, 0.5, 0.5, 0.5, 0.5)):
        value = prompt.split()[2]
        for before, _, _, result in EQUATION.findall(completion):
            assert before == value
            value = result
        assert completion.endswith((f"The answer is {value}", f"= {value} ."))


def test_demonstrations_depend_on_the_seed_only():
    assert demonstrations(50, (1, 3), 0) == demonstrations(50, (1, 3), 0)
    assert demonstrations(50, (1, 3), 0) != demonstrations(50, (1, 3), 1)
