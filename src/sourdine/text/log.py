"""Where a training run is followed: TensorBoard, Weights & Biases, MLflow, or any callable of yours.

A trainer calls `log({"step": 12, "epsilon": 0.8, "learning_rate": 0.01})` while it trains, and once
with the noisy metrics at its end.

Guarantee: only the names in RELEASABLE pass. They are for functions of the plan alone, and for metrics
that came out of a charged mechanism; that such a name holds such a value is up to the caller. Loss,
gradient norms, clipped shares and lot sizes are statistics of private records and have no name here.
When a step was done is one too, for it tells how large its lot was: every value carries the time at
which the log was made. (Whoever watches a server during the run still sees when values arrive.) Nothing
is said about the machine: no host name, path, code or git state.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from sourdine.errors import InputError

Values = dict[str, float]
_METRICS = ("accuracy", "largest_class", "macro_f1", "matthews")
RELEASABLE = (
    *("step", "epsilon", "delta", "learning_rate"),
    *(f"{metric}{end}" for metric in _METRICS for end in ("", "_low", "_high")),
)
"""The only names that are ever logged."""
_WANDB_ARGUMENTS = (
    *("project", "entity", "name", "id", "group", "job_type"),
    *("tags", "notes", "mode", "dir", "resume"),
)
_WANDB_QUIET = {
    **{"console": "off", "save_code": False, "disable_code": True, "disable_git": True},
    **{"disable_job_creation": True, "x_disable_meta": True, "x_disable_stats": True},
    **{"x_disable_machine_info": True, "x_save_requirements": False},
    # Some of these are found out before the switches above are read: words in their place.
    **{"host": "hidden", "program": "sourdine", "program_relpath": "", "program_abspath": ""},
}


def releasable(values: Mapping[str, object]) -> Values:
    """The same values as plain numbers; refused as a whole if one of them may not be released.

    The message names no refused key: it could hold a label of the private data.
    """
    found: Values = {}
    for name, value in values.items():
        if name not in RELEASABLE:
            raise InputError(
                "one of the values to be logged is no release: plain statistics of training tell about "
                f"single records and stay private. What may be logged: {', '.join(RELEASABLE)}."
            )
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise InputError(f"{name} is to be logged, but it is no number; turn it into one first.")
        found[name] = int(value) if name == "step" else float(value)
    return found


class Log:
    """A place for released values: call it with a dict; close it, or use it in a `with` block.

    write: takes a step and the values beside it. end: is called once, when the log is closed. Values
    without a step belong to the last one.
    """

    def __init__(self, write: Callable[[int, Values], object], end: Callable[[], object]) -> None:
        self._write, self._end = write, end
        self._step = 0
        self._closed = False

    def __call__(self, values: Mapping[str, float]) -> None:
        found = releasable(values)
        if self._closed:
            raise InputError("this log is closed; make a new one to log more.")
        self._step = int(found.pop("step", self._step))
        if found:
            self._write(self._step, found)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def tensorboard(folder: str | Path) -> Log:
    """A log that TensorBoard shows: one event file in `folder`, which is made if need be.

    TensorBoard's own writers name the file after the host; this one does not.
    """
    records = _library("tensorboard.summary.writer.record_writer")
    events = _library("tensorboard.compat.proto.event_pb2")
    summaries = _library("tensorboard.compat.proto.summary_pb2")
    start = time.time_ns()
    name = f"events.out.tfevents.{start // 10**9:010d}.{start % 10**9:09d}.sourdine"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = records.RecordWriter((Path(folder) / name).open("xb"))
    except OSError as error:
        raise InputError(
            f"the log cannot be written to {folder} ({error.strerror}); name a folder of your own."
        ) from None

    def put(**content: Any) -> None:
        file.write(events.Event(wall_time=start // 10**9, **content).SerializeToString())
        file.flush()

    def write(step: int, values: Values) -> None:
        scalars = [summaries.Summary.Value(tag=tag, simple_value=each) for tag, each in values.items()]
        put(step=step, summary=summaries.Summary(value=scalars))

    put(file_version="brain.Event:2")
    return Log(write, file.close)


def wandb(run: Any = None, **settings: Any) -> Log:
    """A log in Weights & Biases: a new run that records nothing else, or a `run` of yours.

    settings: project, entity, name, mode and the like, as wandb.init takes them. A run that you started
    keeps what you told it to record, and is not finished by this log.
    """
    if run is not None and settings:
        raise InputError(
            "a run that was started has its settings; give a run, or settings for a new one."
        )
    start = time.time()
    end: Callable[[], object] = _stay
    if run is None:
        run = _wandb_run(settings)
        run.define_metric("*", step_metric="step")
        end = run.finish
    return Log(lambda step, values: run.log({"step": step, **values, "_timestamp": start}), end)


def _wandb_run(settings: Mapping[str, Any]) -> Any:
    unknown = [name for name in settings if name not in _WANDB_ARGUMENTS]
    if unknown:
        raise InputError(
            f"{unknown[0]} is no setting of this log; it takes {', '.join(_WANDB_ARGUMENTS)}. For "
            "more, start the run with wandb.init and pass it as run=."
        )
    library = _library("wandb")
    if getattr(library, "run", None) is not None:  # init would return it, recording what it records
        raise InputError("a run of wandb is going on already; finish it, or pass it as run=.")
    try:
        quiet = library.Settings(**_WANDB_QUIET)
    except (TypeError, ValueError):  # it refuses names that it does not know
        raise InputError(
            "this version of wandb cannot be told to leave out host, code and console, so nothing was "
            "sent; update it (0.19 or newer), or pass a run of your own as run=."
        ) from None
    return library.init(settings=quiet, **settings)


def mlflow(run: Any = None, *, experiment: str | None = None) -> Log:
    """A log in MLflow, metrics only: a new run in `experiment`, or a run of yours (it, or its id).

    A run is made by MLflow's client, which adds no tags about user, program or git as `start_run` does.
    One that you started is not ended by this log.
    """
    if run is not None and experiment is not None:
        raise InputError("a run belongs to an experiment already; give a run, or an experiment.")
    library = _library("mlflow")
    client, start = library.MlflowClient(), time.time_ns() // 10**6
    end: Callable[[], object] = _stay
    if run is None:
        identity = client.create_run(_experiment(client, experiment)).info.run_id
        end = functools.partial(client.set_terminated, identity)
    else:
        identity = run if isinstance(run, str) else run.info.run_id

    def write(step: int, values: Values) -> None:
        metric = library.entities.Metric
        client.log_batch(identity, [metric(name, each, start, step) for name, each in values.items()])

    return Log(write, end)


def _experiment(client: Any, name: str | None) -> str:
    if name is None:
        return "0"  # the one that every MLflow server starts with
    found = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if found is None else found.experiment_id)


def _stay() -> None:
    """A run that somebody else started goes on."""


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise InputError(
            f"this log needs {package}, which is not installed: pip install {package}."
        ) from None
