"""Writes dashboards/*.json, which Grafana reads. Edit *_board.py, then run: python docker/grafana/generate.py"""

import argparse
import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from operator_board import operator_board
from owner_board import owner_board


def write(folder: Path) -> None:
    for name, board in (("operator", operator_board()), ("owner", owner_board())):
        model = board.build()
        # Grafana numbers panels when it saves a dashboard; provisioned ones are never saved.
        for i, panel in enumerate(model.panels or [], start=1):
            panel.id_val = i
        text = json.dumps(model, cls=JSONEncoder, indent=1, ensure_ascii=False, sort_keys=True)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "dashboards")
    write(parser.parse_args().out)
