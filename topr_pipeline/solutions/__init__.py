"""Solutions: what the policy answers to the prompts, sampled once and kept.

In: the prompts table, the `sampling` section, an engine and the policy's folder and version; or
rows that hold solutions already, and the policy's tokenizer.
Out: the solutions table in a file, one row per (prompt, sample), with token ids and raw log-probs.
May fail: an engine that does not load or returns what cannot be trained on, a prompt longer than
the model's context, a full disk. Finished shards stay in the store: the next run goes on there.
"""

from topr_pipeline.solutions.engine import Completion, Engine, Request
from topr_pipeline.solutions.engines import check_engine, make_engine
from topr_pipeline.solutions.offline import Encoder, encoded, read_offline
from topr_pipeline.solutions.sample import Asked, Cost, Sampled, sample, sample_part
from topr_pipeline.solutions.store import forget, set_fingerprint
from topr_pipeline.solutions.top_up import further_samples, lacking

__all__ = [
    "Asked",
    "Completion",
    "Cost",
    "Encoder",
    "Engine",
    "Request",
    "Sampled",
    "check_engine",
    "encoded",
    "forget",
    "further_samples",
    "lacking",
    "make_engine",
    "read_offline",
    "sample",
    "sample_part",
    "set_fingerprint",
]
