"""On the path of Spark's Python processes in the tests: they import pyspark from where it is installed.

Spark puts an archive of the same modules before it. It holds no compiled ones, so that each process would compile them.
"""

from __future__ import annotations

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]
# A worker that plans, commits or streams is forked by Spark's own daemon, whatever daemon the session names.
if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    import spark_daemon

    spark_daemon.prepare(sys.orig_argv[3:4])
