"""torchrun's agent with workers that are forked where torch is imported already.

Nearly all that a restart takes under the command itself are imports; DDP brings some of its own.
"""

from __future__ import annotations

import multiprocessing
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests import survivor


def main() -> None:
    max_restarts, *arguments = sys.argv[1:]
    multiprocessing.set_forkserver_preload(["tests.survivor", "torch._dynamo"])
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=int(max_restarts),
        monitor_interval=0.05,
        start_method="forkserver",
    )
    elastic_launch(config, survivor.main)(*arguments)


if __name__ == "__main__":
    main()
