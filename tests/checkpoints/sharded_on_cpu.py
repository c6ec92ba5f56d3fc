"""An objective for tests: TOPR's own, in a process where accelerate shards on CPUs too.

accelerate turns FSDP2 on for GPUs alone, although torch runs it on CPUs (gloo) as well.
"""

from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from topr_pipeline.checkpoints.objective import make_objective

objective = make_objective("topr")
_init, _plugins = AcceleratorState.__init__, []


def _with_shards(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
    _init(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    _plugins.extend([fsdp_plugin] if fsdp_plugin is not None else [])
    if _plugins:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, _plugins[-1]
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


AcceleratorState.__init__ = _with_shards  # pyrefly: ignore
