"""Rewrites the generated parts of docs/results.md: `make results`."""

import argparse
import sys
from pathlib import Path

from training.errors import TrainingError
from training.evaluation.write import write_text
from training.paper.results.blocks import blocks_of
from training.paper.results.gather import read_results
from training.paper.results.page import filled


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.paper.results",
        description="Write the tables of a results page from committed evaluations; the prose around them stays.",
        epilog="Example: python -m training.paper.results --data docs/results --page docs/results.md",
    )
    parser.add_argument("--data", type=Path, default=Path("docs/results"), help="folder of NAME-seedN.json files")
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"), help="the page to fill")
    options = parser.parse_args()
    try:
        results = read_results(options.data)
        write_text(options.page, filled(options.page.read_text(encoding="utf-8"), blocks_of(results)))
    except (TrainingError, OSError) as problem:
        sys.exit(f"error: {problem}")
    print(f"wrote {options.page} from {sum(len(result.commands) for result in results)} evaluations in {options.data}")


if __name__ == "__main__":
    main()
