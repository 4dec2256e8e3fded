"""Private training of a text model, from a table to a run folder that a stranger can check.

    run = Trainer("notes.csv", Budget(3, 1e-6), text="note", label="diagnosis").fit()
    run.save("out")

Guarantee: everything that is in the run folder is together (epsilon, delta)-DP for the budget's unit
under its adjacency: one plan (text/accounts.py) is charged before anything is drawn. What needs no
charge is said in the certificate with its reason; what is only for the owner's eyes lies beside the run
folder, not in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sourdine import checks, rng
from sourdine.budget import Budget
from sourdine.data.copies import refuse_same_table
from sourdine.data.corpus import Corpus, read_corpus
from sourdine.data.declared import Ask
from sourdine.data.fingerprint import fingerprint
from sourdine.data.overlap import overlap
from sourdine.data.owner import BESIDE, examine
from sourdine.data.split import own_salt, split
from sourdine.errors import BudgetError, InputError
from sourdine.ledger import Ledger
from sourdine.ledger.shared import FILE, check_part, open_shared
from sourdine.modes import private_folder, write_privately
from sourdine.register import PART_OF_A_PLAN
from sourdine.sgd.charge import Charge, poisson
from sourdine.sgd.folder import Folder
from sourdine.sgd.processes import Processes
from sourdine.text import loop
from sourdine.text.accounts import Accounts, accounts, find_labels
from sourdine.text.auditing import Auditing
from sourdine.text.base import load_base, read_base, tell_of_base
from sourdine.text.choosing import (
    chosen_by_speed,
    expected_seconds,
    limit,
    noted,
    read_public,
    usual_length,
)
from sourdine.text.learning import Learning
from sourdine.text.machine import computed_on, device_of, repeatable
from sourdine.text.model import TextModel
from sourdine.text.models import BYTES, Classifier
from sourdine.text.plan import Plan, plan, situation_of
from sourdine.text.prepared import (
    Prepared,
    check_held_out_for_reference,
    check_lot,
    default_model,
    units_of,
)
from sourdine.text.progress import PROGRESS, Progress
from sourdine.text.questions import Questions
from sourdine.text.run import NOT_PRIVATE, About, Run, named_base, read_reference, seal_run, write_plain
from sourdine.text.strategies import LoRA, Strategy, strategy
from sourdine.text.tasks import Classify, task
from sourdine.text.timing import Stopwatch
from sourdine.text.unsaved import Unsaved

_ALIASES = {
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "per_device_train_batch_size": "batch_size",
    "max_grad_norm": "clip",
    "train_dataset": "train",
    "eval_dataset": "test",
}
_WORKING = (PROGRESS, *Folder.WORKING)


class Trainer(Learning):
    """A private training run; see the top of this file.

    train: what `read_corpus` takes: a path, a frame, a datasets.Dataset, or a Corpus.
    model: a local path, a hub name or "bytes"; by default the fetched MiniLM if it is there, or bytes.
    trains: what is trained ("head", "bitfit", "lora", "prompt", "all", or a Strategy); lora=8 is short
    for LoRA(8). labels: the classes, if they may be known; otherwise they are found privately.
    other_labels="drop": records with a label that was not declared teach nothing; without it they stop
    the run before anything is charged (data/declared.py). leave_out_copies: as much for records that
    stand in public test records (data/copies.py). ask: asks the owner instead.
    user: the column that says whose a record is, for a budget per user; rows_per_user of them count.
    test: other records to test on, in place of held out ones; test_is_public says that they may be used
    without noise. records: the declared number of units, under add-remove.
    reference: the folder of a run without privacy, whose accuracy the report shows beside this one's.
    audit: so many canaries are drawn along with the records (sgd/canaries.py), audit_texts: so many
    canary texts (text/auditing.py). What an attacker sees of them bounds epsilon from below; a run that
    shows more than it claims gets no certificate.
    ledger: a ledger that exists (its path, URL or object), which other runs share: the budget is this
    run's part of it, with the ledger's delta, unit and adjacency, and the run folder gets an extract.
    budget_of_all: the largest epsilon of all ledgers over these records together (register/).
    minutes: time that training may take; the planner chooses what trains, lots and steps by it
    (default: 10 on a CPU, no limit on a GPU; math.inf for no limit). Speed is measured on made-up
    texts of 32 tokens, or as long as the median of `public`, texts of the same kind that anybody may
    see: the choice is released, so the records' own lengths have no part in it.
    output_dir: where the run works and ends; an unfinished one goes on with resume.
    seed: repeats a run, for tests and teaching: it gets no certificate. not_private: no privacy at all,
    on data that may be used so.
    log: hears {"step", "epsilon", "learning_rate"} and the noisy metrics, nothing else (text/log.py).
    tell: hears (stage, done, total, epsilon) for a progress bar.
    """

    def __init__(
        self,
        train: Any,
        budget: Budget | None = None,
        *,
        model: str | None = None,
        task: str = "classify",
        text: str | Sequence[str] | None = None,
        label: str | None = None,
        user: str | None = None,
        rows_per_user: int = 1,
        labels: Sequence[str] | None = None,
        other_labels: str | None = None,
        leave_out_copies: bool = False,
        ask: Ask | None = None,
        test: Any = None,
        test_is_public: bool = False,
        records: int | None = None,
        reference: str | Path | None = None,
        minutes: float | None = None,
        public: Any = None,
        encoding: str = "utf-8",
        ledger: Ledger | str | Path | None = None,
        budget_of_all: float | None = None,
        output_dir: str | Path | None = None,
        resume: bool = False,
        trains: str | Strategy | None = None,
        lora: int | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        lot_size: int | None = None,
        clip: float | None = None,
        learning_rate: float | None = None,
        max_length: int | None = None,
        batch_size: int | None = None,
        held_out: float | None = None,
        audit: int | None = None,
        audit_texts: int | None = None,
        device: str | None = None,
        seed: int | None = None,
        not_private: bool = False,
        log: Callable[[dict[str, float]], object] | None = None,
        tell: Callable[[str, int, int, float | None], object] | None = None,
        **others: Any,
    ) -> None:
        for name in others:
            meant = f"it is called {_ALIASES[name]} here" if name in _ALIASES else "there is no such"
            raise InputError(f"Trainer does not take {name!r}: {meant}.")
        if (budget is None) != not_private:
            raise InputError(
                "give a budget, for instance Budget(3, 1e-6); or not_private=True without one, for "
                "data that may be used without privacy."
            )
        if budget is not None and not isinstance(budget, Budget):
            raise InputError(f"{budget!r} is no budget; give Budget(3, 1e-6), for instance.")
        if budget is not None:
            checks.protecting(budget.epsilon)
        if lora is not None and trains not in (None, "lora"):
            raise InputError("lora= trains low-rank additions; leave trains= out beside it.")
        if steps is not None and epochs is not None:
            raise InputError("give steps or epochs, not both.")
        if test_is_public and test is None:
            raise InputError("test_is_public is about test=; records that are held out are private.")
        if not_private and (audit, audit_texts) != (None, None):
            raise InputError(
                "audit compares what is shown with what is claimed; this run claims nothing."
            )
        if user is None and rows_per_user != 1:
            raise InputError("rows_per_user is for users; name the column of persons with user=.")
        self.unit = "example" if user is None else "user"
        if budget is not None and budget.unit != self.unit:
            hint = "name the column of persons with user=" if user is None else "leave user= out"
            raise InputError(f"the budget is per {budget.unit}; {hint}, or make one per {self.unit}.")
        if budget is None and (ledger, budget_of_all) != (None, None):
            raise InputError("a run without privacy is charged to no ledger; leave ledger= out.")
        self.budget, self.not_private = budget, not_private
        self.ledger = _part_of(ledger, budget)
        self.registered = True  # the runs of a comparison are entered as one, by the comparison
        self._ceiling, self._charged = budget_of_all, False
        self._unsaved: Unsaved | None = None
        self.model_name, self._kind = model or default_model(), _task(task)
        self.strategy: Strategy | None = LoRA(lora) if lora is not None else _strategy(trains)
        self.output = None if output_dir is None else Path(output_dir).expanduser()
        self._stated: dict[str, Any] = {
            "lot_size": lot_size,
            "steps": steps,
            "clip": clip,
            "learning_rate": learning_rate,
            "max_length": max_length,
            "batch_size": batch_size,
            "held_out": 0.0 if test is not None else held_out,
        }
        self.epochs = None if epochs is None else checks.positive("epochs", epochs)
        self.rows_per_user = checks.whole("rows_per_user", rows_per_user)
        self.labels = None if labels is None else Classify(tuple(labels)).labels
        self._questions = Questions(
            *(self.labels, other_labels, leave_out_copies, ask, not not_private),
            *(test_is_public, public is not None),
        )
        self._copies: frozenset[int] | None = None  # training records in public ones, once asked
        self.records = None if records is None else checks.whole("records", records)
        self.test_is_public, self.resume, self.seed = test_is_public, resume, seed
        self._source = None if seed is None else rng.seeded(seed)
        self._auditing = Auditing(audit, audit_texts)
        self._device = device_of(device)
        self._log, self._tell, self._heard = log or _ignore, tell or _ignore, bool(log or tell)
        self.minutes, self._given_public = limit(minutes, self._device), public
        self._public: Corpus | None = None
        self._columns: dict[str, Any] = {
            "text": text,
            "label": label,
            "user": user,
            "encoding": encoding,
        }
        self._given, self._given_test = train, test
        self._reference = None if reference is None else read_reference(Path(reference).expanduser())
        self._prepared: Prepared | None = None

    # Before anything is charged

    def prepare(self) -> Prepared:
        """Reads and checks the data, loads the model, and plans; nothing is charged."""
        if self._prepared is None:
            budget = self.budget or Budget(1e6, 1e-15, self.unit)
            poisson(1, 1, self.records, budget.adjacency)  # raises where n is private and not declared
            refuse_same_table(self._given, self._given_test, "--test (test=)")
            whole = self._read(self._given)
            units = self.records or units_of(whole)
            checks.delta(budget.delta, units)
            given_test = None if self._given_test is None else self._read(self._given_test)
            encoder, tokenizer, pooling = load_base(self.model_name)
            before = noted(self.output if self.resume else None)
            texts = None if self._given_public is None else self._read_public(whole).texts
            tokens = usual_length(tokenizer, encoder, self._stated["max_length"], texts)
            watch = Stopwatch(encoder, pooling, self._device, tokens)
            situation = situation_of(
                units,
                budget,
                encoder,
                pretrained=self.model_name != BYTES,
                declared=self.labels is not None,
                device=self._device,
                private=not self.not_private,
                minutes=None if before else self.minutes,
                seconds_a_text=lambda strategy: Processes().once(lambda: watch.training(strategy)),
            )
            chosen = plan(
                situation,
                self.strategy or before.get("trains"),
                steps=self._stated["steps"] or before.get("steps"),
                held_out=self._stated["held_out"],
            )
            own = {name: before.get(name) if x is None else x for name, x in self._stated.items()}
            chosen = chosen.with_(**own)
            by_speed = chosen_by_speed(chosen)
            if chosen.max_length > situation.longest:
                raise InputError(f"this model reads at most {situation.longest} tokens, not that many.")
            if self._reference is not None and given_test is None:
                check_held_out_for_reference(chosen.held_out)
            train, test = self._parts(whole, chosen) if given_test is None else (whole, given_test)
            inside = self.records or units_of(train)
            if not self._sizes_known(test):
                inside = self.records or round(units * (1 - chosen.held_out))
            check_lot(self._stated["lot_size"], inside, self.unit)
            chosen = chosen.fitted(inside, self.epochs)
            if extra := self._auditing.count:
                chosen = chosen.beside(extra, inside)
                inside += extra
            findings = examine(whole)
            asked = self.test_is_public and self.budget is not None  # before the charge, for the owner
            if given_test is not None and not asked:
                findings = replace(findings, tested=len(overlap(train, given_test).places))
            self._prepared = Prepared(
                train,
                test,
                findings,
                encoder,
                tokenizer,
                pooling,
                chosen,
                inside,
                situation,
                watch,
                by_speed,
            )
        return self._prepared

    def _read(self, given: Any) -> Corpus:
        corpus = given if isinstance(given, Corpus) else read_corpus(given, **self._columns)
        if (corpus.users is None) != (self.unit == "example"):
            raise InputError(
                f"the unit is {self.unit}, but {corpus.name} says otherwise; read all records with the "
                "same user=, or without one."
            )
        return corpus

    def _read_public(self, like: Corpus) -> Corpus:
        if self._public is None:
            self._public = read_public(self._given_public, like)
        return self._public

    def _parts(self, whole: Corpus, chosen: Plan) -> tuple[Corpus, Corpus | None]:
        if not chosen.held_out:
            return whole, None
        salt = Processes().once(own_salt)  # of process 0: all must part alike
        parts = split(whole, {"train": 1 - chosen.held_out, "test": chosen.held_out}, salt=salt)
        if not parts["train"] or not parts["test"]:
            raise InputError("a part of the split is empty: too few units; set held_out=0.")
        return whole.take(parts["train"]), whole.take(parts["test"])

    def planned_noise(self) -> float | None:
        """The noise multiplier that the budget asks for; nothing is charged."""
        if self.budget is None:
            return None
        ready = self.prepare()
        own = self._accounts(ready)
        return self._charge(own, ready, None, Processes(), None).noise_multiplier

    def expected_seconds(self, *, privately: bool = False) -> float:
        """How long the run takes on this machine, about; see choosing.expected_seconds."""
        ready = self.prepare()
        given = 0 if ready.test is None or self._given_test is None else len(ready.test)
        return expected_seconds(ready, given, privately=privately)

    # The run

    def fit(self) -> Run:
        """Trains and returns the run; without output_dir it lies in a temporary folder until saved.

        Once: a second run is a second release, with a budget and a Trainer of its own.
        """
        if self._charged:
            raise InputError(
                "this Trainer has made its run, and a second one would be charged as much again; make "
                "another Trainer for it. If the first was stopped, that one takes resume=True and its "
                "output_dir."
            )
        self.ask_owner()
        with repeatable(self._device), torch.random.fork_rng(devices=[]):
            return self._fit() if self.budget is not None else self._fit_plainly()

    def ask_owner(self) -> None:
        """Asks what only the owner of the records may say, once; `fit` does it where nobody has."""
        if self.registered and self._copies is None:
            ready = self.prepare()
            self._copies = Processes().once(lambda: self._questions.ask_about(ready, self._public))
            if Processes().first:
                encoding = self._columns["encoding"]
                tell_of_base(self.model_name, self.budget, self._given, ready.train, encoding)

    def _fit(self) -> Run:
        ready, processes = self.prepare(), Processes()
        folder = Folder(self._folder(processes), processes)
        with folder.held():
            progress = Progress(folder.path, processes)
            self._check_data(ready, progress, processes)
            own = self._accounts(ready)
            noise = progress.state.get("noise_multiplier")
            charge = self._charge(own, ready, folder, processes, noise)
            source = self._source or rng.secure()
            if charge.kind not in ("", source.kind):
                raise InputError(f"this run began with a {charge.kind} source; go on with one like it.")
            progress.note(noise_multiplier=charge.noise_multiplier, plan=ready.by_speed)
            self._enter(charge)
            try:
                charge.reserve(source.kind, folder.run)
            except BudgetError:
                if charge.reservation is None and processes.first:  # nothing was charged
                    self._forget(folder.path)
                raise
            self._charged = True
            if "labels" not in progress.state:
                try:
                    found = processes.once(lambda: self._labels(ready, own, source))
                except InputError as error:  # an answer too: it is not drawn again
                    progress.note(labels=[], because=str(error))
                    raise
                progress.note(labels=found)
            if not progress.state["labels"]:
                raise InputError(progress.state["because"])
            goal = self._kind(tuple(progress.state["labels"]))
            taught = ready.train.emptied(self._copies or ())
            train = self._auditing.among(taught, ready.tokenizer, goal.labels, progress, source)
            network = self._train(replace(ready, train=train), goal, charge)
            if "metrics" not in progress.state:
                noisy = processes.once(lambda: self._metrics(ready, goal, network, own, source))
                progress.note(metrics=noisy)
            if processes.first:
                self._log_metrics(progress.state["metrics"])
            run = self._ended(ready, goal, network, progress)
            if processes.first:
                self._seal(run, ready, charge, own)
            processes.once(lambda: None)  # nobody leaves before the folder is whole
            return run

    def _folder(self, processes: Processes) -> Path:
        """Where the run works: its own folder, or a private one until it is saved."""
        if self.output is None:
            return processes.once(self._unsaved_folder)
        out = self.output
        if (out / "certificate.json").exists():
            for name in _WORKING:  # of a run that was stopped right after it was sealed
                (out / name).unlink(missing_ok=True)
            raise InputError(f"{out} holds a finished run; name another folder.")
        unfinished = any((out / name).exists() for name in (PROGRESS, "run", "checkpoint.pt"))
        if unfinished and not self.resume:
            raise InputError(
                f"{out} holds a run that was not finished, or is in use; add --resume (resume=True) to "
                "go on with it, or name another folder."
            )
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file; name a new folder for the run.")
        if out.exists() and not unfinished and any(map(_foreign, out.iterdir())):
            raise InputError(f"{out} is not empty; name a new folder for the run.")
        return out

    def _forget(self, folder: Path) -> None:
        """Takes away what a refused run has begun to write, so that its folder can be used again."""
        own = folder / FILE
        if own.exists() and not Ledger(own).history():
            own.unlink()
        for name in _WORKING:
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # if there is nothing else in it

    def _unsaved_folder(self) -> Path:
        self._unsaved = Unsaved()
        return self._unsaved.folder

    def _handed_over(self) -> Unsaved | None:
        """From here on the folder goes with the run, not with this Trainer."""
        found, self._unsaved = self._unsaved, None
        return found

    def _check_data(self, ready: Prepared, progress: Progress, processes: Processes) -> None:
        """A run goes on with the same parts: whoever was trained on must not be tested on as well."""
        parts = [part for part in (ready.train, ready.test) if part is not None]
        found = processes.once(lambda: [fingerprint(part.table()) for part in parts])
        found += [named_base(self.model_name), str(ready.plan.max_length), str(ready.plan.strategy)]
        found += self.labels or ()
        found += [] if self.ledger is None else [self.ledger.identity]
        found.append(str(self._auditing))
        if progress.state.setdefault("began", found) != found:
            raise InputError(
                "the records, their split, the labels, the model, what trains, the canaries or the "
                "keys in the config folder are not what this run began with; go on with those, or name "
                "another folder. What was reserved stays charged."
            )

    def _accounts(self, ready: Prepared) -> Accounts:
        if self.budget is None:
            raise InputError("private training needs a budget.")
        tests = {(True, True): "public", (True, False): "private", (False, False): "held out"}
        kind = (self._given_test is not None, self.test_is_public)
        found = accounts(
            self.budget,
            ready.plan,
            declared=self.labels is not None,
            rows_per_user=self.rows_per_user,
            test="none" if ready.test is None else tests[kind],
        )
        if found.labels is not None and 2 * found.labels.threshold > ready.situation.units:
            raise InputError(
                f"at this budget a label comes out only if about {found.labels.threshold:,.0f} units "
                f"have it, and there are {ready.situation.units:,} in all; declare the labels. Nothing "
                "was charged."
            )
        return found

    def _charge(
        self,
        own: Accounts,
        ready: Prepared,
        folder: Folder | None,
        processes: Processes,
        noise: float | None,
    ) -> Charge:
        declared = None if self.records is None else ready.units
        return own.charge(ready.plan, ready.units, declared, folder, processes, noise, self.ledger)

    def _enter(self, charge: Charge) -> None:
        """The charge will be about these records; see register/."""
        private = [self._given]
        if self._given_test is not None and not self.test_is_public:
            private.append(self._given_test)
        if not self.registered:
            charge.ledger = charge.ledger.watched_by(PART_OF_A_PLAN)
        elif charge.processes.first:
            encoding = self._columns["encoding"]
            charge.watch(private, encoding, self._ceiling)

    def _labels(self, ready: Prepared, own: Accounts, source: rng.Source) -> list[str]:
        """Declared labels, or those that come out of a noisy count over all records."""
        if own.labels is None:
            return list(self.labels or ())
        parts = [ready.train]
        if ready.test is not None and self._given_test is None:
            parts.append(ready.test)
        named = [label for part in parts for label in part.labels or ()]
        users = [user for part in parts for user in part.users or ()]
        return find_labels(own.labels, named, source, users or None)

    def _ended(self, ready: Prepared, goal: Classify, network: Classifier, progress: Progress) -> Run:
        texts = len(ready.train.texts)
        model = TextModel(network.cpu(), ready.tokenizer, goal, ready.plan.max_length, texts)
        beside = None
        if self.output is not None:
            beside = Path(f"{self.output}{BESIDE}")
            write_privately(private_folder(beside) / "data.md", ready.findings.to_markdown())
        return Run(
            progress.folder,
            model,
            progress.state["metrics"],
            not_for_release=beside,
            unsaved=self._handed_over(),
        )

    def _seal(self, run: Run, ready: Prepared, charge: Charge, own: Accounts) -> None:
        if self.seed is not None:
            said = {"why": "a seeded run: whoever guesses the seed subtracts the noise"}
            write_plain(run, "SEEDED, NOT PRIVATE", said)
            for name in _WORKING:
                (run.folder / name).unlink(missing_ok=True)
            return
        shown = self._auditing.shown(run.model)
        seal_run(run, charge, own, ready.plan, self._about(ready), _WORKING, shown)

    def _about(self, ready: Prepared) -> About:
        units, share = ready.situation.units, ready.plan.held_out
        known = self.budget is not None and self.budget.adjacency != "add-remove"
        return About(
            ready.train,
            units if known else None,
            self._amount(ready, ready.train, 1 - share),
            "" if ready.test is None else self._amount(ready, ready.test, share),
            self.test_is_public,
            self.model_name,
            self.rows_per_user,
            computed_on(self._device),
            read_base(self.model_name),
        )

    # Without privacy

    def _fit_plainly(self) -> Run:
        ready = self.prepare()
        progress = Progress(self._folder(Processes()), Processes())
        goal = self._kind(self.labels or tuple(sorted(set(ready.train.labels or ()) - {""})))
        network, model, dataset, collate = self._network(ready, goal)
        source = self._source or rng.secure()
        loop.train_plainly(
            model,
            dataset,
            ready.plan,
            collate=collate,
            source=source,
            tell=lambda done: self._tell("training", done, ready.plan.steps, None),
        )
        ready.plan.strategy.finish(network)
        metrics = self._metrics(ready, goal, network, None, source)
        self._log_metrics(metrics)
        if ready.test is not None:
            metrics["how"] = "NOT PRIVATE: exact, on records that the owner declares may be used so"
        progress.state["metrics"] = metrics
        run = self._ended(ready, goal, network, progress)
        write_plain(run, NOT_PRIVATE, {"base": named_base(self.model_name)})
        return run


def _part_of(ledger: Ledger | str | Path | None, budget: Budget | None) -> Ledger | None:
    """The shared ledger, which has the delta, unit and adjacency of the budget."""
    if ledger is None or budget is None:
        return None
    found = open_shared(ledger, budget.epsilon)
    check_part(found, budget)
    return found


def _task(name: str) -> type[Classify]:
    return task(name)


def _foreign(path: Path) -> bool:
    """Whether a file is none of those that a run may leave when it is killed at its very start."""
    return path.name not in _WORKING and path.suffix != ".new" and not path.name.startswith(".ledger.")


def _strategy(given: str | Strategy | None) -> Strategy | None:
    return strategy(given) if isinstance(given, str) else given


def _ignore(*said: object) -> None:
    pass
