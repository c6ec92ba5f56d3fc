import json
from pathlib import Path

import polars as pl
import pytest
from pydantic import ValidationError

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Shot, Template
from topr_pipeline.prompts import check_examples, load_examples, prompt_id, rendered
from topr_pipeline.tables import PROMPTS


def table(*questions: str) -> pl.DataFrame:
    rows = [
        {
            "prompt_id": prompt_id(q),
            "prompt": q,
            "gold": "1",
            "source": f"set.jsonl:{i}",
            "split": "train",
            "meta": '{"level": 1}',
        }
        for i, q in enumerate(questions, 1)
    ]
    return PROMPTS.conform(pl.DataFrame(rows))


SHOTS = (Shot(prompt="1+1?", answer="2"), Shot(prompt="1+2?", answer="3"))


def read(template: Template, question: str = "4?", chat=None) -> str:
    shots = load_examples(template, Path("nowhere"))
    return rendered(table(question), template, shots, chat)["prompt"].item()


PLAIN = [
    ({}, "4?"),
    ({"text": "Question: {prompt}\nAnswer:"}, "Question: 4?\nAnswer:"),
    ({"text": "{prompt}\n{answer}"}, "4?\n"),
    ({"text": "Q: {prompt} A: {answer}."}, "Q: 4? A:"),
    ({"system": "Add."}, "Add.\n\n4?"),
    ({"examples": SHOTS}, "1+1? 2\n\n1+2? 3\n\n4?"),
    (
        {
            "text": "Q: {prompt}\nA: {answer}.",
            "examples": SHOTS,
            "system": "Add.",
            "separator": "\n",
        },
        "Add.\nQ: 1+1?\nA: 2.\nQ: 1+2?\nA: 3.\nQ: 4?\nA:",
    ),
]


@pytest.mark.parametrize(("keys", "expected"), PLAIN, ids=[str(p[0])[:60] for p in PLAIN])
def test_plain_template(keys, expected):
    assert read(Template.model_validate(keys)) == expected


def test_braces_of_the_question_and_of_the_template_stay_what_they_are():
    template = Template(text=r"\boxed{} {prompt} {answer}")
    assert read(template, r"\frac{1}{2} {prompt} {answer}?") == (
        r"\boxed{} \frac{1}{2} {prompt} {answer}?"
    )


def test_questions_become_turns_for_a_chat_template():
    said = []

    def chat(messages):
        said.append([(m["role"], m["content"]) for m in messages])
        return "<rendered>"

    template = Template(chat=True, text="Solve: {prompt}", system="Add.", examples=SHOTS[:1])
    assert read(template, chat=chat) == "<rendered>"
    assert said == [
        [
            ("system", "Add."),
            ("user", "Solve: 1+1?"),
            ("assistant", "2"),
            ("user", "Solve: 4?"),
        ]
    ]


def test_ids_are_those_of_the_questions_which_are_kept_beside():
    before = table("4?", "5?")
    after = rendered(before, Template(text="Q: {prompt}"), [], None)
    assert after["prompt_id"].equals(before["prompt_id"])
    assert after["prompt"].to_list() == ["Q: 4?", "Q: 5?"]
    assert [json.loads(m) for m in after["meta"]] == [
        {"question": "4?", "level": 1},
        {"question": "5?", "level": 1},
    ]


def test_without_a_template_the_table_stays_as_it_is():
    assert rendered(table("4?"), Template(), [], None).equals(table("4?"))


@pytest.mark.parametrize(
    "text", ["no place", "{prompt} {prompt}", "{answer} {prompt}", "{prompt} {answer} {answer}"]
)
def test_a_template_without_its_places_is_refused(text):
    with pytest.raises(ValidationError, match=r"one \{prompt\} is wanted"):
        Template(text=text)


def test_examples_may_lie_in_a_file(tmp_path):
    (tmp_path / "shots.csv").write_text('prompt,answer\n1+1?,2\n1+2?,"It is\n3"\n')
    assert load_examples(Template(examples="shots.csv"), tmp_path) == [
        Shot(prompt="1+1?", answer="2"),
        Shot(prompt="1+2?", answer="It is\n3"),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a"}', r"shots.jsonl:2: the answer is null \(template.examples\)"),
        ('{"prompt": "a", "anser": 1}', r"shots.jsonl:2: the answer is null .*mean 'anser'\?"),
        ('{"prompt": " ", "answer": 1}', r'shots.jsonl:2: the prompt is " "'),
        ("{", r"shots.jsonl:2 \(template.examples\): not JSON"),
    ],
)
def test_bad_examples_are_named_with_file_row_and_key(tmp_path, line, said):
    (tmp_path / "shots.jsonl").write_text('{"prompt": "1+1?", "answer": 2}\n' + line)
    with pytest.raises(ToprError, match=said):
        load_examples(Template(examples="shots.jsonl"), tmp_path)


def test_an_example_among_the_eval_prompts_is_refused_by_normalised_text():
    check_examples(SHOTS, table("4?", "5?"))
    with pytest.raises(ToprError, match=r'"1\+1\?" \(template.examples\).*\(set.jsonl:2\)'):
        check_examples(SHOTS, table("4?", "1 + 1 ?"))
