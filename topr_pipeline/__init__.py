"""Train language models with TOPR over several iterations, as a graph of Dagster assets."""
