"""The report: what iterations scored, why, at which cost, of one experiment or of several.

In: `Run`, the tables of an experiment as far as they are there. Out: a folder with `report.html`
(self-contained, no script, no network), `report.md`, its plots as PNG and its tables as Parquet.
May fail: ToprError without any scores, and for a folder that cannot be written.
"""

from topr_pipeline.report.run import COSTS, Run
from topr_pipeline.report.scores import markdown_table, score_table
from topr_pipeline.report.write import PAGE, write_report

__all__ = ["COSTS", "PAGE", "Run", "markdown_table", "score_table", "write_report"]
