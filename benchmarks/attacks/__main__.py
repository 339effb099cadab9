"""Attacks a real service on loopback and measures what other clients notice: `make attacks`.

    python -m benchmarks.attacks [--seconds 8] [--only NAME] [--checkout DIR] [--models DIR] [--out .bench/attacks]

Each attack gets a fresh service. A costly file is sent once alone while the model is idle, then by 16 connections in a
closed loop; slow clients only come together. Meanwhile other clients, each in a process of its own, ask for
/v2/health/live every 10 ms, and for predictions of a small PNG and of a 400 × 400 PNG with 20 ms between them; a photo
of 1200 × 900 every 100 ms is measured too, without a goal. Memory is the proportional set size of the service and all
its descendants, sampled every 100 ms.

The exit code is 0 only if every goal was met. Prints a Markdown table, and writes results.json.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.attacks.attacks import Attack, all_attacks
from benchmarks.attacks.measure import ALONE, LARGE, ROOT, SMALL, TOGETHER, Outcome, measure, write_requests
from benchmarks.attacks.report import SPARE_MEGABYTES, Budgets, heading, missed, row, write
from benchmarks.serving.load import LoadError, ask, wait_until_ready
from benchmarks.serving.processes import busy_share, free_port, running
from service.serving.budgets import bodies_megabytes, decoding_megabytes

WARM_UP_REQUESTS = 20
MODEL = "cifar10"  # what is asked, where the models folder has it: its network costs little beside the attacks


@contextmanager
def served(checkout: Path, models: Path, out: Path, descriptors: int) -> Iterator[tuple[int, int]]:
    """The service of a checkout: its process and its port."""
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--models", str(models), "--port", str(port)]
    if (models / MODEL).is_dir():
        command += ["--default-model", MODEL]
    if descriptors:
        command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
    log = out / "service.log"
    with running([*command, "--device", "cpu"], {"PYTHONPATH": str(checkout)}, checkout, log) as process:
        wait_until_ready(process, port, "/v2/health/ready", log)
        yield process.pid, port


def attacked(attack: Attack, arguments: argparse.Namespace, others: dict[str, Path]) -> Iterator[Outcome]:
    """The outcomes of one attack on a fresh service."""
    request = arguments.out / "attack.request"
    request.write_bytes(attack.make())
    models = arguments.models or arguments.checkout / "models"
    with served(arguments.checkout, models.resolve(), arguments.out, attack.descriptors) as (service, port):
        # What is allocated on first use is no growth.
        for name in (SMALL, LARGE) * WARM_UP_REQUESTS:
            body = others[name].read_bytes().partition(b"\r\n\r\n")[2]
            ask(port, "POST", "/v1/predict", body, "image/png")
        for phase in (ALONE, TOGETHER) if attack.alone else (TOGETHER,):
            yield measure(service, port, attack, phase, arguments.seconds, request, others)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8, help="length of each phase of an attack")
    parser.add_argument("--only", default="", metavar="NAME", help="attacks with these words in their name")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the folder that contains the service to attack")
    parser.add_argument(
        "--models", type=Path, help="folder with the bundles to serve; that of the checkout unless given"
    )
    parser.add_argument("--out", type=Path, default=Path(".bench/attacks"))
    arguments = parser.parse_args()
    arguments.checkout, arguments.out = arguments.checkout.resolve(), arguments.out.resolve()
    chosen = [attack for attack in all_attacks() if arguments.only.lower() in attack.name.lower()]
    if not chosen:
        names = "\n  ".join(attack.name for attack in all_attacks())
        print(f"attacks: no attack is called {arguments.only!r}; there are\n  {names}", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    budgets, busy = Budgets(bodies_megabytes(0), decoding_megabytes(0)), busy_share()
    print(
        f"{arguments.seconds:g} s for each phase. Memory may reach idle + {budgets.bodies} MB (bodies) + "
        f"{budgets.decoding} MB (decoding) + {SPARE_MEGABYTES} MB. Other programs use {busy:.0%} of the CPUs.\n"
    )
    print(heading(), flush=True)
    others, outcomes = write_requests(arguments.out), list[Outcome]()
    try:
        for attack in chosen:
            for outcome in attacked(attack, arguments, others):
                outcomes.append(outcome)
                print(row(outcome, budgets), flush=True)
    except LoadError as error:
        print(f"attacks: {error}", file=sys.stderr)
        return 2
    about = {"seconds": arguments.seconds, "checkout": arguments.checkout.name, "busy_share": round(busy, 3)}
    write(outcomes, budgets, about, arguments.out / "results.json")
    return 1 if any(missed(outcome, budgets) for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
