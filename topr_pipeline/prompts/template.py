"""From a question to the text that the policy continues: template, worked examples, chat turns."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import Shot, Template
from topr_pipeline.prompts.files import read_records
from topr_pipeline.prompts.text import prompt_id
from topr_pipeline.prompts.values import as_json, did_you_mean, gold_text, shown

Message = Mapping[str, str]
Chat = Callable[[Sequence[Message]], str]
"""Renders messages (role, content) as text, up to where the assistant's turn begins."""


def load_examples(template: Template, root: Path) -> list[Shot]:
    """The worked examples, inline or from a file. ToprError for rows without prompt or answer."""
    if not isinstance(template.examples, str):
        return list(template.examples)
    shots = []
    for source, record in read_records(template.examples, root, "template.examples"):
        texts = {name: gold_text(record.get(name)) for name in Shot.model_fields}
        for name, text in texts.items():
            if text is None:
                raise ToprError(
                    f"{source}: the {name} is {shown(record.get(name))} (template.examples); give "
                    f"the columns prompt and answer, a text in each{did_you_mean(name, record)}"
                )
        shots.append(Shot.model_validate(texts))
    return shots


def check_examples(shots: Sequence[Shot], eval_prompts: pl.DataFrame) -> None:
    """ToprError when a worked example is an eval prompt: its answer would stand in the prompt."""
    ids = {prompt_id(shot.prompt): shot for shot in shots}
    for name, source in eval_prompts.select("prompt_id", "source").iter_rows():
        if name in ids:
            raise ToprError(
                f"the worked example {shown(ids[name].prompt)} (template.examples) is also an eval "
                f"prompt ({source}); take another example"
            )


def rendered(
    prompts: pl.DataFrame, template: Template, shots: Sequence[Shot], chat: Chat | None
) -> pl.DataFrame:
    """The prompts table with `prompt` as the policy reads it; the question goes to `meta`.

    `prompt_id` stays that of the question: the same question under another template is the same
    prompt to the split, the iterations and the overlap check. `chat` is needed if template.chat.
    """
    if template == Template():
        return prompts
    render = _turns(template, shots, chat) if chat else _plain(template, shots)
    questions = prompts["prompt"].to_list()
    return prompts.with_columns(
        pl.Series("prompt", [render(q) for q in questions], pl.String),
        pl.Series("meta", map(_with_question, prompts["meta"], questions), pl.String),
    )


def _plain(template: Template, shots: Sequence[Shot]) -> Callable[[str], str]:
    asked, after = _parts(template)
    worked = [_ask(shot.prompt, asked) + shot.answer + after for shot in shots]
    before = [template.system] if template.system is not None else []
    # What stands before the answer may end in a space, which most tokenizers put with the answer's
    # first word: the policy's own first word would lose it.
    ends = asked.rstrip(" ")
    return lambda q: template.separator.join([*before, *worked, _ask(q, ends)])


def _turns(template: Template, shots: Sequence[Shot], chat: Chat) -> Callable[[str], str]:
    asked = _parts(template)[0].rstrip(" ")
    before = [] if template.system is None else [{"role": "system", "content": template.system}]
    for shot in shots:
        before.append({"role": "user", "content": _ask(shot.prompt, asked)})
        before.append({"role": "assistant", "content": shot.answer})
    return lambda q: chat([*before, {"role": "user", "content": _ask(q, asked)}])


def _parts(template: Template) -> tuple[str, str]:
    """What stands before and after the answer; without `{answer}` one space parts it."""
    before, found, after = template.text.partition("{answer}")
    return (before, after) if found else (f"{before} ", "")


def _ask(question: str, before: str) -> str:
    # Not str.format: braces of LaTeX and code stay what they are.
    return before.replace("{prompt}", question)


def _with_question(meta: str, question: str) -> str:
    said: dict[str, Any] = json.loads(meta)
    return as_json({"question": question, **said})
