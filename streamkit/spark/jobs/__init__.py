"""Jobs for spark-submit or `python -m streamkit.spark.jobs.<name>`: archive, compact, lag, restore, verify.

Each prints what it is about to do and what it did, may be killed anywhere, and goes on when it is run again.
"""
