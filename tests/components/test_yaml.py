"""What a user reads when the YAML is wrong: file, line, key, and what is accepted."""

from collections.abc import Callable

import pytest

from topr_pipeline.components import TOPRExperiment
from topr_pipeline.components.project import load_project
from topr_pipeline.errors import ToprError

GOOD = """\
type: topr_pipeline.components.TOPRExperiment
attributes:
  iterations: 2
  policy:
    source: tiny
  prompts:
    source: word_problems
    count: 8
  eval_prompts:
    source: word_problems
    count: 4
  sampling:
    temperature: 1.0
  mix:
    steps:
      - strategy: anna_karenina
        correct: 1
    baseline: 0
  training:
    learning_rate: 5e-7
"""


@pytest.fixture
def load(write_project) -> Callable[[str], TOPRExperiment]:
    return lambda text: load_project(write_project(mine=text)).experiments["mine"]


def test_a_set_of_solutions_keeps_the_columns_that_it_lacks(load):
    source = "source: files\n    path: set.csv\n    columns: {gold: null}\n  offline: {}"
    text = GOOD.replace("source: word_problems\n    count: 8", source)
    said = load(text.replace("iterations: 2", "iterations: 1")).experiment.model_dump()
    assert said["prompts"]["columns"]["gold"] is None
    assert said["offline"]["columns"]["reward"] == "reward"


def test_a_good_file_is_an_experiment_named_after_its_folder(load):
    component = load(GOOD)
    assert component.name == "mine"
    assert component.experiment.training.learning_rate == 5e-7


WRONG = [
    (
        "    count: 8",
        "    cuont: 8",
        "8: prompts.cuont: unknown key 'cuont' (did you mean 'count'?)",
    ),
    (
        "  sampling:",
        "  smapling:",
        "12: smapling: unknown key 'smapling' (did you mean 'sampling'?)",
    ),
    ("    count: 8", "    count: eight", "8: prompts.count: Input should be a valid integer"),
    ("    count: 8", "    count: true", "8: prompts.count: a number is wanted"),
    (
        "    count: 8",
        "    count: 0",
        "8: prompts.count: Input should be greater than or equal to 1",
    ),
    ("  iterations: 2\n", "", "iterations: Field required"),
    (
        "    source: tiny",
        "    source: tny",
        "policy: Input tag 'tny' found using 'source' does not",
    ),
    (
        "        correct: 1",
        "        corect: 1",
        "17: mix.steps.0.corect: unknown key 'corect' (did",
    ),
    ("    baseline: 0", "    baseline: 2", "18: mix.baseline: Input should be less than or equal"),
    (
        "    baseline: 0",
        "    baseline: 0\n    effective_positive_share: 0.2",
        "mix: give baseline or effective_positive_share, not both",
    ),
    ("temperature: 1.0", "temperature: .nan", "13: sampling.temperature: Input should be a finite"),
    (
        "temperature: 1.0",
        "engine: vlm",
        "13: sampling.engine: accepted: transformers, vllm, server, fake",
    ),
    ("temperature: 1.0", "temperature: 1.0e-40", "13: sampling.temperature: Input should be gre"),
    (
        "    source: word_problems\n    count: 4",
        '    source: files\n    path: ""',
        "11: eval_prompts.path: String should have at least 1 character",
    ),
    (
        "    learning_rate: 5e-7",
        "    objective: {negative: [1, 0]}",
        "20: training.objective.negative: [1.0, 0.0] must be [lower, upper]",
    ),
    (
        "    learning_rate: 5e-7",
        "    lora: {rank: 4}\n    launch: {processes: 2, fsdp: true}",
        "training: lora merges into the whole policy in one process: no launch.fsdp",
    ),
    (
        "    learning_rate: 5e-7",
        "    optimizer: schedule_free_adamw",
        "20: training.optimizer: Input should be 'adamw', 'adafactor'",
    ),
    *[
        (
            "      - strategy: anna_karenina\n        correct: 1\n",
            f"      - {step}\n",
            f"16: mix.steps.0.{key}: Field required",
        )
        for step, key in (
            ("{strategy: sql}", "sql"),
            ("{strategy: sql, query: SELECT 1}", "sql"),
            ("strategy: sql", "sql"),
            ("{strategy: difficulty}", "solve_rate"),
            ("{strategy: balance}", "positive_share"),
            ("{strategy: outcome}", "outcomes"),
            ("{strategy: limit}", "rows"),
            ("{}", "strategy"),
            ("{rows: 3}", "strategy"),
        )
    ],
    ("    source: tiny", "    source: folder", "4: policy.path: Field required"),
    ("    source: tiny", "    hidden_size: 96", "4: policy.source: Field required"),
    (
        "    source: word_problems\n    count: 8",
        "    source: hub\n    name: split",
        "6: prompts.split: Field required",
    ),
]


@pytest.mark.parametrize(("line", "instead", "said"), WRONG, ids=[w[1].strip() for w in WRONG])
def test_a_wrong_file_is_refused_with_line_key_and_what_is_accepted(load, line, instead, said):
    assert line in GOOD
    with pytest.raises(ToprError) as error:
        load(GOOD.replace(line, instead, 1))
    lines = str(error.value).splitlines()
    assert any(said in each for each in lines), str(error.value)
    assert all("/mine/defs.yaml:" in each for each in lines)


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ("[{prompt: a}]", "template.examples.0.answer: Field required"),
        ("[{prompt: a, answer: b, anser: c}]", "template.examples.0.anser: unknown key 'anser'"),
        ('""', "template.examples: String should have at least 1 character"),
        ("3", "template.examples: Input should be a valid array"),
    ],
)
def test_worked_examples_are_refused_once_as_the_kind_that_they_are(load, examples, said):
    with pytest.raises(ToprError) as error:
        load(f"{GOOD}  template: {{examples: {examples}}}\n")
    (line,) = str(error.value).splitlines()
    assert said in line


def test_a_key_that_was_written_into_the_file_is_not_shown(load):
    server = "engine: server\n    server: {urls: [http://127.0.0.1/v1], api_key: sk-canary}"
    with pytest.raises(ToprError, match="unknown key 'api_key'") as error:
        load(GOOD.replace("temperature: 1.0", server))
    assert "sk-canary" not in str(error.value)


def test_all_errors_are_said_at_once(load):
    text = GOOD.replace("count: 8", "count: x").replace("baseline: 0", "baseline: 9")
    with pytest.raises(ToprError) as error:
        load(text)
    assert len(str(error.value).splitlines()) == 2


def test_an_unknown_key_is_refused_with_all_that_are_known(load):
    with pytest.raises(ToprError, match="accepted: source, count, split, steps"):
        load(GOOD.replace("    count: 8", "    count: 8\n    zzz: 1"))


def test_broken_yaml_is_refused_with_its_line(load):
    with pytest.raises(ToprError, match=r"defs.yaml:4: not YAML"):
        load(GOOD.replace("iterations: 2", "iterations: [2"))


def test_a_value_from_the_environment_that_is_refused_is_said_with_its_key(load, monkeypatch):
    monkeypatch.setenv("MY_STOP", "")
    with pytest.raises(ToprError, match=r"sampling\.stop\.0: String should have at least 1 char"):
        load(GOOD.replace("    temperature: 1.0", '    stop: ["{{ env.MY_STOP }}"]'))


def test_environment_variables_are_filled_in(load, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_PROMPTS", "mine.jsonl")
    text = GOOD.replace(
        "source: word_problems\n    count: 8",
        'source: files\n    path: "{{ env.MY_PROMPTS }}"',
    )
    prompts = load(text).experiment.prompts
    assert prompts.source == "files"
    assert prompts.path == "mine.jsonl"


def test_texts_that_hold_nothing_to_fill_in_stay_as_they_are(load):
    text = GOOD.replace(
        "    temperature: 1.0",
        """    temperature: 1.0
    stop: ["\\n", "18"]
  template:
    text: "{prompt}\\n"
    separator: "\\n\\n"
    examples: [{prompt: "9 + 9", answer: "18"}]""",
    )
    experiment = load(text).experiment
    assert experiment.sampling.stop == ("\n", "18")
    assert experiment.template.text == "{prompt}\n"
    assert experiment.template.separator == "\n\n"
    assert experiment.template.examples[0].answer == "18"
