"""Run seeds by hand: ``python -m tests.simulation --seed 17 --trace``, or ``--seeds 1000`` for many."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.run import SimulationFailure, simulate


def main() -> int:
    """Run the seeds that were asked for; return 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", action="append", default=[], help="a seed; may be given several times")
    parser.add_argument("--seeds", type=int, default=0, help="run the seeds 0 to N-1")
    parser.add_argument("--first", type=int, default=0, help="where --seeds begins")
    parser.add_argument("--trace", action="store_true", help="write the whole trace")
    options = parser.parse_args()
    failed = 0
    for seed in [*options.seed, *(str(number) for number in range(options.first, options.first + options.seeds))]:
        try:
            world = simulate(seed)
        except SimulationFailure as failure:
            failed += 1
            sys.stdout.write(f"{failure}\n")
            if options.trace:
                sys.stdout.write("\n".join(failure.trace) + "\n")
        else:
            if options.trace:
                sys.stdout.write("\n".join(world.trace_lines) + "\n")
            sys.stdout.write(f"seed {seed}: {len(world.evidence.reads)} reads, trace {world.trace_digest}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
