"""Logs get what may be released, and nothing else."""

import socket
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from sourdine.errors import InputError
from sourdine.text.log import RELEASABLE, Log, mlflow, releasable, tensorboard, wandb

STEP = {"step": 3, "epsilon": 0.5, "learning_rate": 0.01}
END = {"accuracy": 0.85, "accuracy_low": 0.8, "accuracy_high": 0.9}
PRIVATE = [
    *("loss", "grad_norm", "clipped", "lot", "lot_size", "batch", "train_loss", "eval_accuracy"),
    *(
        "eval_loss",
        "accuracy_exact",
        "train_accuracy",
        "samples_per_second",
        "Loss",
        "accuracy ",
        "time",
    ),
]


class Recorder:
    """An object that accepts every call and remembers it, with what was passed."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], name: str) -> None:
        self.calls, self.name = calls, name

    def __getattr__(self, name: str) -> "Recorder":
        return Recorder(self.calls, name)

    def __call__(self, *args: Any, **kwargs: Any) -> "Recorder":
        self.calls.append((self.name, args, kwargs))
        return self


def passed(calls: list[Any], name: str) -> list[Any]:
    return [(args, kwargs) for called, args, kwargs in calls if called == name]


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    calls: list[Any] = []
    module: Any = ModuleType("wandb")
    module.run = None
    module.Settings = dict
    module.init = Recorder(calls, "init")
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module, calls


@pytest.fixture
def fake_mlflow(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Like MLflow as far as a log may go: any other call is an error."""
    calls: list[Any] = []

    def create_run(experiment_id: str) -> Any:
        calls.append(("create_run", (experiment_id,), {}))
        return SimpleNamespace(info=SimpleNamespace(run_id="run-7"))

    known = {"old": SimpleNamespace(experiment_id="5")}
    client = SimpleNamespace(
        create_run=create_run,
        log_batch=Recorder(calls, "log_batch"),
        set_terminated=Recorder(calls, "set_terminated"),
        get_experiment_by_name=known.get,
        create_experiment=lambda _: "6",
    )
    module: Any = ModuleType("mlflow")
    module.MlflowClient = lambda: client
    module.entities = SimpleNamespace(Metric=lambda *fields: fields)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return calls


def events(folder: Path) -> list[Any]:
    (file,) = folder.iterdir()
    return list(EventFileLoader(str(file)).Load())


def test_releasable_values_pass_as_plain_numbers() -> None:
    found = releasable({"step": np.int64(3), "epsilon": np.float32(0.5), "accuracy": 1})
    assert found == {"step": 3, "epsilon": 0.5, "accuracy": 1.0}
    assert [type(value) for value in found.values()] == [int, float, float]
    assert releasable(dict.fromkeys(RELEASABLE, 1)).keys() == set(RELEASABLE)


@pytest.mark.parametrize("name", PRIVATE)
def test_plain_statistics_are_refused_by_every_log(name: str) -> None:
    written: list[Any] = []
    log = Log(lambda *content: written.append(content), lambda: None)
    log(STEP)
    for values in ({name: 1.0}, {**STEP, name: 1.0}, {name: 1.0, **END}):
        with pytest.raises(InputError, match="no release"):
            log(values)
    assert written == [(3, {"epsilon": 0.5, "learning_rate": 0.01})]


def test_no_message_quotes_what_was_refused() -> None:
    with pytest.raises(InputError) as caught:
        releasable({"f1 of HIV positive": 0.5})
    assert "HIV" not in str(caught.value)
    with pytest.raises(InputError) as caught:
        releasable({"accuracy": "Smith"})
    assert "Smith" not in str(caught.value)


@pytest.mark.parametrize("value", [True, "0.5", None, [0.5], {"value": 0.5}, 1j])
def test_only_numbers_are_logged(value: object) -> None:
    with pytest.raises(InputError, match="no number"):
        releasable({"epsilon": value})


def test_values_without_a_step_belong_to_the_last_one() -> None:
    written: list[Any] = []
    log = Log(lambda *content: written.append(content), lambda: None)
    log(STEP)
    log(END)
    log({"step": 9})
    assert written == [(3, {"epsilon": 0.5, "learning_rate": 0.01}), (3, END)]


def test_a_closed_log_takes_nothing_more() -> None:
    ends: list[int] = []
    with Log(lambda *_: None, lambda: ends.append(1)) as log:
        log(STEP)
    log.close()
    assert ends == [1]
    with pytest.raises(InputError, match="closed"):
        log(STEP)


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    with tensorboard(tmp_path / "a" / "b") as log:
        log({"step": 1, "epsilon": 0.25, "learning_rate": 0.5})
        log({"step": 2, "epsilon": 0.5, "learning_rate": 0.25})
        log({"accuracy": 0.75})
    board = EventAccumulator(str(tmp_path / "a" / "b")).Reload()
    assert set(board.Tags()["scalars"]) == {"epsilon", "learning_rate", "accuracy"}
    assert [(at.step, at.value) for at in board.Scalars("epsilon")] == [(1, 0.25), (2, 0.5)]
    assert [(at.step, at.value) for at in board.Scalars("accuracy")] == [(2, 0.75)]


def test_tensorboard_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    log = tensorboard(tmp_path)
    log(STEP)
    assert [event.step for event in events(tmp_path)] == [0, 3]
    log.close()


def test_tensorboard_tells_neither_the_host_nor_how_long_a_step_took(tmp_path: Path) -> None:
    with tensorboard(tmp_path) as log:
        log(STEP)
        time.sleep(1.1)
        log({**STEP, "step": 4})
    (file,) = tmp_path.iterdir()
    assert socket.gethostname() not in file.name
    assert socket.gethostname().encode() not in file.read_bytes()
    assert str(tmp_path).encode() not in file.read_bytes()
    assert len({event.wall_time for event in events(tmp_path)}) == 1


def test_two_logs_in_one_folder_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for step in (1, 2):
        with tensorboard(tmp_path) as log:
            log({"step": step, "epsilon": step})
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        tensorboard(tmp_path / "file" / "logs")


def test_wandb_is_told_to_record_nothing_else(fake_wandb: tuple[Any, list[Any]]) -> None:
    _, calls = fake_wandb
    with wandb(project="notes", mode="offline") as log:
        log(STEP)
        time.sleep(0.01)
        log(END)
    ((_, asked),) = passed(calls, "init")
    quiet = asked.pop("settings")
    assert asked == {"project": "notes", "mode": "offline"}
    assert quiet["console"] == "off"
    assert quiet["disable_git"] is quiet["disable_code"] is quiet["x_disable_meta"] is True
    assert quiet["x_disable_stats"] is quiet["x_disable_machine_info"] is True
    assert quiet["save_code"] is quiet["x_save_requirements"] is False
    assert socket.gethostname() != quiet["host"]
    rows = [args[0] for args, _ in passed(calls, "log")]
    assert len({row.pop("_timestamp") for row in rows}) == 1
    assert rows == [STEP, {"step": 3, **END}]
    assert len(passed(calls, "finish")) == 1


def test_a_run_of_ones_own_is_not_finished(fake_wandb: tuple[Any, list[Any]]) -> None:
    _, calls = fake_wandb
    with wandb(Recorder(calls, "run")) as log:
        log(STEP)
    assert [name for name, _, _ in calls] == ["log"]


def test_wandb_settings_that_would_send_more_are_refused(fake_wandb: tuple[Any, list[Any]]) -> None:
    module, calls = fake_wandb
    for settings in ({"save_code": True}, {"settings": {}}, {"config": {"rows": 3}}):
        with pytest.raises(InputError, match="no setting"):
            wandb(**settings)
    with pytest.raises(InputError, match="settings for a new one"):
        wandb(Recorder(calls, "run"), project="notes")
    module.run = object()
    with pytest.raises(InputError, match="going on already"):
        wandb()
    module.run = None

    def refuse(**_: object) -> None:
        raise ValueError("Extra inputs are not permitted")

    module.Settings = refuse
    with pytest.raises(InputError, match="nothing was sent"):
        wandb()
    assert calls == []


def test_mlflow_gets_metrics_only(fake_mlflow: list[Any]) -> None:
    with mlflow() as log:
        log(STEP)
        time.sleep(0.01)
        log(END)
    assert [name for name, _, _ in fake_mlflow] == [
        "create_run",
        "log_batch",
        "log_batch",
        "set_terminated",
    ]
    assert fake_mlflow[0][1:] == (("0",), {})
    batches = [args for args, _ in passed(fake_mlflow, "log_batch")]
    assert {run for run, _ in batches} == {"run-7"}
    metrics = [metric for _, batch in batches for metric in batch]
    assert {name: (value, step) for name, value, _, step in metrics} == {
        **{"epsilon": (0.5, 3), "learning_rate": (0.01, 3)},
        **{"accuracy": (0.85, 3), "accuracy_low": (0.8, 3), "accuracy_high": (0.9, 3)},
    }
    assert len({at for _, _, at, _ in metrics}) == 1


def test_mlflow_runs_and_experiments_by_name(fake_mlflow: list[Any]) -> None:
    with mlflow("mine") as log, mlflow(SimpleNamespace(info=SimpleNamespace(run_id="it"))) as other:
        log(STEP)
        other(STEP)
    assert [args[0] for args, _ in passed(fake_mlflow, "log_batch")] == ["mine", "it"]
    assert passed(fake_mlflow, "set_terminated") == []
    for name, number in (("old", "5"), ("new", "6")):
        mlflow(experiment=name)
        assert passed(fake_mlflow, "create_run")[-1] == ((number,), {})
    with pytest.raises(InputError, match="already"):
        mlflow("mine", experiment="old")


def test_a_library_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("tensorboard", "wandb", "mlflow"):
        for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    for make, name in (
        (lambda: tensorboard(tmp_path), "tensorboard"),
        (wandb, "wandb"),
        (mlflow, "mlflow"),
    ):
        with pytest.raises(InputError, match=f"pip install {name}"):
            make()
