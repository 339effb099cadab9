"""SIGTERM ends the process by the time that is set, and SIGKILL leaves nothing behind, whatever runs."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.conftest import ADMIN, OPERATOR_LINE, RED, Service, make_bundle
from tests.costly_files import many_scans
from tests.faults.graphs import endless
from tests.faults.processes import (
    BareService,
    client_of,
    connect,
    cpu_seconds,
    descendants,
    free_port,
    has_ended,
    label,
    metric,
    post,
)
from tests.service.serving.test_load import wait_for

# Requests have half of it. The tests wait for longer than the service may take, and for less than what they start does.
DRAIN = ("--drain-seconds", "2")
SECONDS = 20
PATIENT = ("--request-timeout-ms", "600000", "--body-timeout-ms", "600000")
HALF = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(RED)}\r\n\r\n".encode() + RED[:20]
GATE = "/v1/models/colours/versions/1/gate"
# Half a minute of a worker, if it is allowed that.
SLOW_FILE = many_scans(5000, 3000)


def slow_decoding(cpu_seconds: int) -> tuple[str, ...]:
    """Lets a file take so many seconds of a worker."""
    return ("--max-pixel-passes", "100000000000", "--decode-cpu-seconds", str(cpu_seconds))


def cut_off(response: httpx.Response) -> bool:
    return response.status_code == 503 and "ended before it had the answer" in response.json()["detail"]


def wait_until_in_flight(client: httpx.Client, requests: int) -> None:
    wait_for(lambda: metric(client, "confgate_requests_in_flight") == requests + 1)  # and the one that asks


def end(service: Service) -> int:
    service.process.send_signal(signal.SIGTERM)
    try:
        service.process.wait(SECONDS)
    finally:
        service.process.kill()  # a graph that loops would keep a CPU busy long after a test that failed
    return service.wait_until_ended()


def test_a_body_that_never_ends_does_not_keep_the_process(models: Path) -> None:
    """A client that never ends its request is answered 503 when the time is over, and the exit code says so."""
    make_bundle(models)
    service = Service(models, *DRAIN, *PATIENT).wait_until_serving()
    with client_of(service) as client, connect(service, HALF) as connection:
        wait_until_in_flight(client, 1)
        assert end(service) == 1
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in answer
    assert not any("still runs" in line for line in service.lines)


def test_a_long_decode_does_not_keep_the_process(models: Path) -> None:
    """An image that is being decoded is answered 503, and the processes that decode end too."""
    make_bundle(models)
    service = Service(models, *DRAIN, *PATIENT, *slow_decoding(60)).wait_until_serving()
    with client_of(service) as client, ThreadPoolExecutor(1) as pool:
        request = pool.submit(post, client, SLOW_FILE)
        wait_for(lambda: len(descendants(service.process.pid)) == 2)  # the one that forks, and a worker
        processes = descendants(service.process.pid)
        assert end(service) == 1
        assert cut_off(request.result())
    wait_for(lambda: all(map(has_ended, processes)))


def test_a_graph_that_loops_does_not_keep_the_process(models: Path) -> None:
    """A batch that never ends is answered 503; the process is ended from outside its threads, and the log says which
    of them ran."""
    make_bundle(models, perturbed=False).replace_graph("forward", endless())
    service = Service(models, *DRAIN, *PATIENT).wait_until_serving()
    with client_of(service) as client, ThreadPoolExecutor(1) as pool:
        request = pool.submit(post, client, RED)
        wait_until_in_flight(client, 1)
        assert end(service) == 1
        assert cut_off(request.result())
    last = next(line for line in service.log() if "still runs" in line["message"])
    assert any("_sess.run" in place for place in last["threads"].values())


def test_a_graph_that_loops_while_it_is_loaded_does_not_keep_the_process(models: Path) -> None:
    """SIGTERM also ends a service that never comes to serve."""
    make_bundle(models, perturbed=False).replace_graph("forward", endless(also_black=True))
    service = Service(models, *DRAIN)
    service.wait_for_line("Waiting for application startup")
    assert end(service) == 1


def test_a_load_that_never_ends_does_not_keep_the_process(models: Path) -> None:
    """Nor does a bundle that loops when an operator has it loaded: what was served before answers until then."""
    bundle = make_bundle(models, perturbed=False)
    service = Service(models, *DRAIN, "--api-keys", OPERATOR_LINE).wait_until_serving()
    bundle.replace_graph("forward", endless(also_black=True))
    with client_of(service) as client, ThreadPoolExecutor(1) as pool:
        before = cpu_seconds(service.process.pid)
        request = pool.submit(client.post, "/v2/repository/models/colours/load", headers=ADMIN)
        wait_for(lambda: cpu_seconds(service.process.pid) > before + 0.5)  # it loops
        assert label(client, RED) == "red"
        assert end(service) == 1
        assert request.result().status_code == 503


def test_ctrl_c_does_not_wait_for_requests(models: Path) -> None:
    """SIGINT ends a service with a request in flight long before its time to drain, and the exit code is 0."""
    make_bundle(models)
    service = Service(models, "--drain-seconds", "600", *PATIENT).wait_until_serving()
    with client_of(service) as client, connect(service, HALF):
        wait_until_in_flight(client, 1)
        service.process.send_signal(signal.SIGINT)
        service.process.wait(SECONDS)
    assert service.wait_until_ended() == 0


def test_sigkill_under_load_leaves_nothing_behind(models: Path, tmp_path: Path) -> None:
    """Killed while it computes and decodes, a service leaves no process; started again on the same port and state
    folder it has the same gate and gives the right answers."""
    make_bundle(models)
    flags = ("--state", str(tmp_path / "state"), "--api-keys", OPERATOR_LINE, *PATIENT, *slow_decoding(1))
    port = free_port()
    with BareService(models, *flags, port=port) as service, client_of(service.wait_until_ready()) as client:
        assert client.put(GATE, json={"policy": "tpr95"}, headers=ADMIN).status_code == 200
        with ThreadPoolExecutor(9) as pool:
            requests = [pool.submit(post, client, SLOW_FILE)]
            wait_for(lambda: len(descendants(service.process.pid)) == 2)
            requests += [pool.submit(post, client, RED) for _ in range(200)]
            requests[50].result()
            processes = descendants(service.process.pid)
            assert service.stop(signal.SIGKILL) == -signal.SIGKILL
            ended = [request.exception() or request.result() for request in requests]
    assert isinstance(ended[0], httpx.TransportError)
    with BareService(models, *flags, port=port) as service, client_of(service.wait_until_ready()) as client:
        answer = post(client, RED).json()["predictions"][0]
        assert (answer["label"], answer["policy"]) == ("red", "tpr95")
        wait_for(lambda: all(map(has_ended, processes)))
        assert service.stop() == 0
