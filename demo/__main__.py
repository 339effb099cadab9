"""`make demo`, or `python -m demo`: shows what a confidence gate is for.

Starts the service with the shipped cifar10 model, and Prometheus with the shipped alert rules if it is installed. Sends
CIFAR-10 images, then a slowly growing share of out-of-distribution (OOD) images. Shows what is refused as unfamiliar
and as unsure beside the shares that calibration expects, which alert fires when, and the accuracy of accepted answers
and of all answers. Ends with a picture.
"""

import shutil
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from demo.answers import write_lines
from demo.errors import DemoError
from demo.faster_rules import timing, write_configuration
from demo.images import KNOWN, foreign_images, known_images
from demo.messages import print_result, print_start, write_summary
from demo.picture import draw
from demo.processes import ROOT, Child, address_of, gate_of, prometheus_address_of, start_prometheus, start_service
from demo.run import Run
from demo.screen import screen_for
from demo.traffic import Schedule, Traffic
from demo.watching import OwnWatch, PrometheusWatch, Watch, changes

READ_EVERY_SECONDS = 0.5


def demo(
    duration: Annotated[float, typer.Option(min=4, help="Seconds of traffic.")] = 210,
    foreign: Annotated[str, typer.Option(help="The OOD images: fashion_mnist, uniform, gaussian, or the name of a "
                                              "set in the data folder.")] = "fashion_mnist",
    share: Annotated[float, typer.Option(min=0, max=1, help="The largest share of OOD images.")] = 0.5,
    rate: Annotated[float, typer.Option(min=1, max=1000, help="Images per second.")] = 40,
    speed: Annotated[float, typer.Option(min=1, max=600, help="How many times faster than in production "
                                                              "time runs for the alert rules.")] = 60,
    out: Annotated[Path, typer.Option(help="Folder for picture, answers and logs; overwrites those of an earlier run.")]
    = Path("runs/demo"),
    data_root: Annotated[Path, typer.Option(help="Folder with NAME.npz sets; used if present.")] = Path("data"),
    models: Annotated[Path, typer.Option(help="Folder with the bundles.")] = ROOT / "models",
    prometheus: Annotated[str, typer.Option(help="The Prometheus program; an empty string for none.")] = "prometheus",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the service; 0 takes any free one.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of the images.")] = 0,
) -> None:  # fmt: skip
    """Shows the gate and its alert at work."""
    console = Console()
    known, other = known_images(data_root), foreign_images(foreign, data_root, seed)
    out.mkdir(parents=True, exist_ok=True)
    program = shutil.which(prometheus) if prometheus else None
    with ExitStack() as stack:
        service = stack.enter_context(start_service(models, KNOWN, port, out / "service.log"))
        url = address_of(service)
        gate, schedule, time_scale = gate_of(url, KNOWN), Schedule(duration, share), timing(speed)
        host, number = urlsplit(url).hostname, urlsplit(url).port
        assert host is not None
        assert number is not None
        traffic = Traffic((host, number), known, other, schedule, rate, seed)
        watch: Watch = OwnWatch(traffic.answers, gate, time_scale)
        children, prometheus_url = [service], None
        if program is not None:
            config = write_configuration(_emptied(out / "prometheus"), urlsplit(url).netloc, speed)
            children.append(stack.enter_context(start_prometheus(program, config, out / "prometheus.log")))
            prometheus_url = prometheus_address_of(children[-1])
            watch = PrometheusWatch(prometheus_url, gate, time_scale)
        print_start(console, gate, known, other, speed, time_scale, url, prometheus_url)
        if isinstance(watch, PrometheusWatch):
            watch.wait_until_scraping()
        traffic.start()
        watch.begin(traffic.began_wall)
        run = Run(gate, known, other, schedule, time_scale, speed, watch.source, traffic.answers)
        follow(run, traffic, watch, console, children)
    run.failures = dict(traffic.failures)
    write_lines(out / "answers.jsonl", (asdict(answer) for answer in run.answers))
    write_lines(out / "readings.jsonl", (asdict(reading) for reading in run.readings))
    write_summary(run, out / "summary.json")
    draw(run, out / "demo.png")
    print_result(console, run, out)


def _emptied(folder: Path) -> Path:
    """The folder, without the configuration and the series of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder.resolve()


def follow(run: Run, traffic: Traffic, watch: Watch, console: Console, children: list[Child]) -> None:
    """Reads and shows until the schedule is over. Ctrl-C ends the run earlier; its picture is still drawn."""
    with screen_for(console) as screen:
        try:
            while not is_over(run, traffic.elapsed):
                time.sleep(READ_EVERY_SECONDS)
                for child in children:
                    child.check()
                try:
                    reading = watch.read(traffic.elapsed)
                except OSError:
                    continue  # Prometheus did not answer in time; the next reading covers this one
                run.events += changes(run.readings[-1] if run.readings else None, reading)
                run.readings.append(reading)
                screen.update(run, traffic.elapsed)
        except KeyboardInterrupt:
            console.print("interrupted")
        finally:
            traffic.stop()


def is_over(run: Run, elapsed: float) -> bool:
    """Whether the schedule has ended, and none of the gate's own alerts is about to fire."""
    if elapsed < run.schedule.seconds:
        return False
    on_its_way = any(
        run.firing_at(one.alert) is None
        and (one.alert in reading.alerts or (one.reason in reading.shares and reading.shares[one.reason].outside))
        for reading in run.readings[-1:]
        for one in run.gate.watched
    )
    return not on_its_way or elapsed > run.schedule.seconds + 2 * (run.timing.window + run.timing.hold)


def main() -> None:
    """Runs the command line; a DemoError is one message and no traceback."""
    # `kill` must end the service and Prometheus too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        typer.run(demo)
    except DemoError as error:
        typer.echo(f"demo: {error}", err=True)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
