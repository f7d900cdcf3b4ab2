"""Connects to Ray or starts it, and lists its devices."""

import contextlib
import dataclasses
import functools
import logging
import os
import pwd
import re
import secrets
import sys
import urllib.parse
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import psutil

from platform.cluster import head, leftovers, waiting
from platform.cluster.nodes import ClusterHandle, ask, handle_of, this_machine
from platform.common.errors import ClusterError, InputError
from platform.common.output import print_line
from platform.common.progress import Progress
from platform.common.signals import counted_interrupts, ends_when_interrupted, sigterm_restored, skip_exit_hooks
from trainers import startup
from trainers.commands.processes import environment_at_start
from trainers.host.node import error_of

ANSWER_S = 20
"""Seconds that a Ray address may take to accept a connection, and again to answer."""
KEEP_LOGS = "LAYOUT_SEARCH_KEEP_RAY_LOGS"
"""Environment variable that keeps our own Ray's logs after the command; a cluster fault always keeps them."""
_STARTS = 3
"""Number of attempts to start our own Ray."""
LATE = "timed out during startup"
"""Ray's message about a node that did not start within the 30 s that Ray allows."""
_MOST_OF_ADDRESS = 300
"""Number of characters read from a file with a cluster's address."""
_SHIPPED = Path(__file__).resolve().parents[__name__.count(".")] / startup.__name__.partition(".")[0]
"""Folder of the code that Ray ships to workers on all nodes: `trainers`, or the installed package."""
_SETTINGS = {
    # Train's controller polls its workers at this interval; a trial ends no faster (default 2 s).
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # What a failed worker group may spend on taking its process group down (default 30 s, spent whole on a hang).
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5",
    # The environment that Train would give its workers: `trainers.startup.prestart` predicts it.
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
    # Whole-gigabyte blocks of unlike sizes fragment a nearly full GPU: BLOOM 7b1 on one H200 had 12 allocator retries
    # at 114 of 140 GiB without this. torch reads the first name up to 2.8, the second from 2.9 on.
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTHONWARNINGS": "ignore",
    startup.SWITCH: "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
_DRIVER_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_RAYLET_OF_DRIVER = "RAY_RAYLET_PID"
"""Names the process without which Ray ends this one, at once and with 1, once a message to the raylet fails. Unset, it
is the parent, which Ray takes for ended if it has the id 1, as in a container or after `nohup` and a closed terminal.
Named by its own id, this process goes on to its sentence and its exit code.
"""
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes our own Ray listen only on 127.0.0.1, by Ray's setting for systems whose firewalls ask about each port.
Otherwise Ray listens on every interface, with three metrics pages that need no token.
"""
_OF_OUR_OWN = {
    # The priority of the user's other processes. Ray's default (15) leaves workers a thirtieth of a core that another
    # process keeps busy.
    "RAY_worker_niceness": "0",
    # No processes started ahead without our runtime environment, up to one a core: no actor of ours gets one of them.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
"""Settings of workers in our own Ray, unless the user has set them."""

CPU_WORKERS = 2
"""Devices of a cluster without GPUs, unless the space states another number."""


@contextlib.contextmanager
def connected(
    address: str | None,
    *,
    cpu_workers: int = CPU_WORKERS,
    num_gpus: int | None = None,
    wait_s: float = waiting.WAIT_S,
    start: bool = True,
) -> Generator[ClusterHandle]:
    """Connects to `address` ("local" starts our own Ray), else to RAY_ADDRESS, else to the cluster whose head this is.

    A cluster with an autoscaler is asked for `num_gpus` GPUs (default: all that its file promises) and given `wait_s`
    seconds. If our own Ray would be started and `start` is false, the handle is this machine without a Ray.

    Raises:
        InputError: the address does not answer within 20 s, the nodes have unlike GPUs, or too few are possible.
        ClusterError: Ray could not be started, or the GPUs did not come in time.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in (_SETTINGS | _DRIVER_SETTINGS).items()})
    os.environ[_RAYLET_OF_DRIVER] = str(os.getpid())
    target = _address(address)
    if target == "local" and not start:
        yield handle_of([this_machine()], cpu_workers=cpu_workers, driver_ip="127.0.0.1")
        return
    if local := target == "local":
        _prepare_local()
    import ray  # after the settings above, which Ray reads at import
    from ray.exceptions import RayError

    keeps_logs, claim, raylet, gcs_address = bool(os.environ.get(KEEP_LOGS)), _claimed() if local else None, "", ""
    try:
        sessions = _in_sessions_of_their_own() if local else contextlib.nullcontext()
        with ends_when_interrupted(), sigterm_restored(), sessions:
            try:
                with Progress("starting Ray" if local else f"joining the Ray cluster at {target}"):
                    _patiently(lambda: _start(target))
            except SystemExit as error:  # raised by Ray's own SIGTERM handler
                raise KeyboardInterrupt from error
            except Exception as error:
                do = "started" if local else "reached"
                raise ClusterError(f"Ray could not be {do}: {_first_line(error)}") from error
        if local:
            leftovers.end_abandoned_sessions()
        with ends_when_interrupted(), contextlib.nullcontext() if local else waiting.for_nodes(num_gpus, wait_s):
            handle = handle_of(ask(ray), cpu_workers=cpu_workers, driver_ip=ray.util.get_node_ip_address())
            context = ray.get_runtime_context()
            raylet, gcs_address = _raylet_of(context.get_node_id(), ray.nodes()), context.gcs_address
            yield dataclasses.replace(handle, head=gcs_address, raylet=raylet, is_local=local)
    except ClusterError:
        keeps_logs = True
        raise
    except RayError as error:  # such as a node without NVML, an actor that never started, or a lost head
        keeps_logs = True
        message = _first_line(getattr(error, "cause", None) or error)
        raise ClusterError(f"Ray failed with {type(error).__name__}: {message}") from error
    finally:
        # No interrupt is raised here: it would leave processes and the session's folder behind.
        with ends_when_interrupted(), counted_interrupts():
            if gcs_address and (head.is_lost(gcs_address) or head.loss_of(raylet)):
                # Ray ends the process with exit code 1 when it leaves a lost head, or where another thread still waits
                # for an answer of the cluster that it has left.
                skip_exit_hooks()
            else:
                _shut_down()
            if claim is not None:
                leftovers.end_claimed(claim, keeps_logs=keeps_logs)


def _claimed() -> Path:
    try:
        return leftovers.claim()
    except OSError as error:
        raise ClusterError(f"Ray could not be started: {error.strerror}: {error.filename}") from error


def _shut_down() -> None:
    """Disconnects from Ray, or ends our own, and keeps this process's SIGTERM handler.

    Ray's core worker leaves the default action behind, by which the process would end without sweeping its session.
    Before Ray ends its processes, which takes a second, the handler is set again.
    """
    import ray

    node = cast(Any, ray)._private.worker._global_node
    with sigterm_restored() as restore:
        if node is not None:
            end_processes = node.kill_all_processes

            def restore_first(*arguments: Any, **named: Any) -> None:
                restore()
                end_processes(*arguments, **named)

            node.kill_all_processes = restore_first
        ray.shutdown()


def _address(address: str | None) -> str:
    """Returns the address to connect to, or "local" without a cluster.

    Raises:
        InputError: no Ray answers there.
    """
    target = address or os.environ.get("RAY_ADDRESS") or ""
    if target in ("", "auto"):
        target = _cluster_of_this_head() or target
    if target and target != "local":
        _check(target)
    return target or "local"


def check_paths() -> None:
    """Checks paths with which our own Ray would fail only after minutes or with an unclear message.

    Raises:
        InputError: a path of the environment has a blank, or Ray's socket names would be too long.
    """
    for path in (sys.executable, sys.prefix):
        if re.search(r"\s", path):
            raise InputError(
                f"Ray starts no workers from {path!r}, a path with a blank: make the environment in another folder"
            )
    name = next((name for name in ("RAY_TMPDIR", "TMPDIR") if os.environ.get(name)), None)
    socket = f"{os.environ[name] if name else '/tmp'}{_SOCKET}"
    if name is not None and len(os.fsencode(socket)) > _MOST_OF_SOCKET:
        longest = _MOST_OF_SOCKET - len(_SOCKET)
        raise InputError(
            f"Ray's sockets stand below {name}, whose path may have {longest} bytes, got"
            f" {len(os.fsencode(os.environ[name]))}: set RAY_TMPDIR to a shorter one"
        )


_MOST_OF_SOCKET = 107
"""Largest number of bytes that Linux allows in the path of a socket."""
_SOCKET = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest socket path of Ray below its folder."""


def _prepare_local() -> None:
    """Sets how our own Ray runs its workers, and closes it to other hosts and to users without our token."""
    check_paths()
    os.environ |= _LOOPBACK
    os.environ |= {name: os.environ.get(name, value) for name, value in _OF_OUR_OWN.items()}
    if "RAY_AUTH_MODE" not in os.environ:
        # Other users of this machine can reach its ports; only processes that inherit this token are admitted.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextlib.contextmanager
def _in_sessions_of_their_own() -> Generator[None]:
    """Starts Ray's processes in their own sessions, so that a signal to this process's group does not end them.

    Terminals, `timeout` and SLURM send such signals; Ray is needed until this process has ended in order. The kernel
    still ends Ray's processes with this one.
    """
    from ray._private import services

    popen = services.ConsolePopen
    services.ConsolePopen = functools.partial(popen, start_new_session=True)  # type: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        services.ConsolePopen = popen


def _start(address: str) -> None:
    """Connects to the cluster at `address`, or starts our own for "local"."""
    import ray

    from trainers.startup import prestart

    ray.init(
        address=address,
        include_dashboard=False if address == "local" else None,
        runtime_env={
            "py_modules": [str(_SHIPPED)],
            "env_vars": {name: os.environ[name] for name in _SETTINGS},
            "worker_process_setup_hook": prestart.preload,
        },
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def users_environment() -> dict[str, str | None]:
    """Returns the user's own values of the variables that `connected` sets, None if unset.

    A user's command gets them, because our values suit only this project's workers.
    """
    environment = environment_at_start()
    return {name: environment.get(name) for name in (*_SETTINGS, *_DRIVER_SETTINGS, _RAYLET_OF_DRIVER)}


def _raylet_of(node_id: str, nodes: Sequence[Mapping[str, Any]]) -> str:
    node = next(entry for entry in nodes if entry["NodeID"] == node_id)
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def _patiently(start: Callable[[], None]) -> None:
    """Calls `start`, which starts Ray, and repeats it if Ray timed out.

    A busy machine, or one that reads Ray from a slow disk for the first time, may need longer than Ray waits.
    """
    driver = psutil.Process()
    before = set(driver.children(recursive=True))
    for starts_left in reversed(range(_STARTS)):
        try:
            start()
            return
        except Exception as error:
            if late := LATE in str(error):
                for process in set(driver.children(recursive=True)) - before:  # Ray no longer tracks these
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            if not (late and starts_left):
                raise
            print_line(
                "Ray did not come up in the 30 s that it allows itself, since this machine is busy or slow:"
                " it is started again"
            )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _cluster_of_this_head() -> str | None:
    """Returns the address of the Ray cluster that `ray start` began on this machine; None without one.

    Any user may write the file that names the cluster, so only files of this user and of root are read.
    """
    path = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(file, encoding="utf-8", errors="replace") as opened:
        owner = os.fstat(file).st_uid
        if owner not in (os.getuid(), 0):
            print_line(
                f"{path} belongs to {_user(owner)}: the Ray cluster that it names is not used; --address joins one."
            )
            return None
        address = opened.read(_MOST_OF_ADDRESS).strip()
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or error_of(host, int(port), timeout_s=2):
        return None  # the file is left over from a cluster that is gone
    print_line(f"Runs on the Ray cluster at {address}, which {path} names (--address local: on a Ray of its own).")
    return address


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _check(address: str) -> None:
    """Checks that a Ray answers in time. Ray's own client would retry for minutes and cannot be cancelled."""
    if address.startswith("ray://"):
        raise InputError(f"{address} is a Ray client address; give the head's own, as HOST:6379, or run on the head")
    if address.startswith(("http://", "https://")):
        host = urllib.parse.urlsplit(address).hostname or "HOST"
        raise InputError(
            f"{address} is the address of Ray's dashboard, which takes jobs: give the head's own, as {host}:6379, by"
            " --address, or unset RAY_ADDRESS"
        )
    do = "start one (`ray up cluster.yaml`), correct --address or RAY_ADDRESS, or use --address local"
    if address == "auto":
        raise InputError(f"no Ray cluster that `ray start` began runs on this machine, got the address auto: {do}")
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or len(port) > 5:
        problem = "its port must be a number up to 65535"
    elif error := error_of(host, int(port), timeout_s=ANSWER_S):
        is_late = isinstance(error, TimeoutError)
        problem = f"no answer within {ANSWER_S} s" if is_late else (error.strerror or str(error)).lower()
    else:
        problem = _refusal(address)
    if problem:
        raise InputError(f"no Ray answers at {address} ({problem}); {do}")


def _refusal(address: str) -> str:
    """Returns why the server at the address is not the head of a Ray that admits us; "" if it is.

    It sends the first request of Ray's own client by gRPC, with TLS and token as in Ray's settings.
    """
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.ray_constants import GLOBAL_GRPC_OPTIONS  # else it would go through the machine's http_proxy
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    try:
        with cast(Any, init_grpc_channel(address, GLOBAL_GRPC_OPTIONS)) as channel:
            stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
            stub.GetClusterId(cast(Any, gcs_service_pb2).GetClusterIdRequest(), timeout=ANSWER_S, wait_for_ready=True)
    except grpc.RpcError as error:
        code = cast(Any, error).code()
        late = code is grpc.StatusCode.DEADLINE_EXCEEDED
        return f"no answer within {ANSWER_S} s" if late else f"{code.name}: {cast(Any, error).details()}"
    except (RuntimeError, OSError) as error:  # raised by RAY_USE_TLS without its files
        return _first_line(error)
    return ""
