"""The benchmarks behind the README's figures: `python -m benchmarks`, or `make bench`.

A figure is the median of rounds, and is judged by its ratio to others of the same run, on the same disk. In every round
each contender has its turn, in another order each time, so that what else the machine does hits all of them alike.
Nothing here fails a test: a target that was not reached is printed as such.
"""
