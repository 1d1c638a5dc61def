"""Jobs for spark-submit or `python -m streamkit.spark.jobs.<name>`: archive, compact, lag, restore, verify.

Each prints its plan and its result, may be killed anywhere, and continues when it is run again.
"""
