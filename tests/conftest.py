"""The environment of every test, set before anything imports JAX.

XLA once hung for good with threads of its own on two cores, and the workers of pytest-xdist share
the cores already: each gets the CPU backend and one thread. Subprocesses inherit it.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
