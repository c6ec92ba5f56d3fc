"""Read the rows of a Hub data set through `datasets`."""

from collections.abc import Iterator
from pathlib import Path

from topr_pipeline.errors import ToprError
from topr_pipeline.experiment import HubPrompts
from topr_pipeline.prompts.values import Record


def read_hub(spec: HubPrompts, root: Path, key: str) -> Iterator[tuple[str, Record]]:
    """The rows of one split, each with its source, "name split[row]", rows from 0 as on the Hub.

    A folder of that name below `root` is read instead of the Hub. Raises ToprError for what
    `datasets` cannot load: no such set, configuration, split or revision, no network.
    """
    from datasets import load_dataset

    name = str(root / spec.name) if (root / spec.name).exists() else spec.name
    try:
        rows = load_dataset(name, spec.config, split=spec.split, revision=spec.revision)
    except Exception as error:  # datasets, huggingface_hub and pyarrow raise dozens of classes
        config = f", config {spec.config!r}" if spec.config else ""
        raise ToprError(
            f"the data set {spec.name!r} cannot be loaded ({key}.name; split {spec.split!r}"
            f"{config}, revision {spec.revision or 'main'!r}): {_first_line(error)}; give a set of "
            "the Hub that can be reached or is in the local cache (HF_HUB_OFFLINE=1 reads that "
            "alone), or download its files and use source: files"
        ) from error
    for row, record in enumerate(rows):
        yield f"{spec.name} {spec.split}[{row}]", dict(record)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}"
