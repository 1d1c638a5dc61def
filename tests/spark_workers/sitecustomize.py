"""On the path of Spark's Python processes in the tests: they import pyspark from where it is installed.

Spark puts an archive of the same modules before it. It holds no compiled ones, so that each process would compile them.
"""

from __future__ import annotations

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]
