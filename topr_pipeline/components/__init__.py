"""The Dagster side: an experiment's YAML unrolled into assets, and what a run has to launch.

In: `assets/<name>/defs.yaml`. Out: assets, blocking checks and a job per experiment.
Below the component nothing knows Dagster: `graph` unrolls, `plan` finds what is missing or stale,
`step` makes one artifact through `stages`, `inspection` says what to show of it.
"""

from topr_pipeline.components.topr_experiment import (
    TOPRExperiment,
    experiment_assets,
    experiment_definitions,
)

__all__ = ["TOPRExperiment", "experiment_assets", "experiment_definitions"]
