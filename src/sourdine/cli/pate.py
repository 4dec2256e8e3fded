"""`sourdine pate`: teachers on private records label public texts with noise, and a student learns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.encode import check_public, reader
from sourdine.cli.options import (
    Config,
    Data,
    Delta,
    Device,
    Encoding,
    Json,
    Label,
    Model,
    Text,
    User,
    import_text,
    listed,
    print_json,
    training_budget,
    whole,
)
from sourdine.cli.train import Tell, progress
from sourdine.digits import above
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.certificate import Access, Certificate
    from sourdine.data.corpus import Corpus
    from sourdine.data.overlap import Overlap
    from sourdine.pate.aggregators import Aggregator
    from sourdine.pate.labelling import Labelling
    from sourdine.pate.student import Student
    from sourdine.pate.votes import Votes

_CHUNK = 200  # questions between two writes to the disk
_PLAN = "plan.json"
_KINDS = ("best", "gnmax", "confident", "lnmax")


def pate(
    data: Data,
    public: Annotated[
        str | None, typer.Option("--public", help="Public texts without labels: the questions.")
    ] = None,
    text: Text = None,
    label: Label = None,
    labels: Annotated[
        str | None, typer.Option("--labels", help="The classes, with commas; known without the data.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The budget.")] = None,
    delta: Delta = 1e-6,
    teachers: Annotated[float, typer.Option("--teachers", help="How many.")] = 250,
    user: User = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; notes-pate for notes.csv.")
    ] = None,
    aggregator: Annotated[
        str, typer.Option("--aggregator", help="best, gnmax, confident or lnmax.")
    ] = "best",
    questions: Annotated[
        float | None, typer.Option("--questions", help="Asked at most; planned if not given.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Votes that confident asks for.")
    ] = None,
    accuracy: Annotated[
        float, typer.Option("--assume", help="Accuracy of a teacher that the plan assumes.")
    ] = 0.75,
    test: Annotated[
        str | None, typer.Option("--test", help="PUBLIC labelled texts, for an exact test.")
    ] = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out-copies", help="Private records that the public text holds.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    model: Model = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Learn from teachers' votes: private records never meet the model that is handed on.

    Teachers on disjoint parts of the data vote on public texts; noisy answers, charged before the
    first, train a student. Threshold and noise are planned on made-up votes, never on the private ones.

    Example: `sourdine pate notes.csv --public abstracts.csv --text note --label diagnosis --labels
    yes,no --teachers 250 --epsilon 2`
    """
    checks.one_of("aggregator", aggregator, _KINDS)
    classes = listed(labels)
    if not classes or len(set(classes)) < 2 or len(set(classes)) < len(classes):
        raise InputError("name the classes with --labels yes,no: they must be known without the data.")
    check_public(model)
    if public is None:
        raise InputError("give public texts of the same kind with --public: teachers label those.")
    budget = training_budget(epsilon, delta, user, "zero-out")
    count = checks.whole("teachers", teachers, least=2)
    folder = out or Path(f"{Path(data).name.split('.')[0]}-pate")
    _check_folder(folder, resume)
    import_text()
    from sourdine.data.corpus import read_corpus  # noqa: PLC0415

    own = read_corpus(data, text=text, label=label, user=user, encoding=encoding)
    others = read_corpus(public, text=list(own.text), label=None, encoding=encoding, labelled=False)
    _check_sizes(own, count, budget)
    copies = _copies(own, others, leave_out)
    settings = {
        "aggregator": aggregator,
        "questions": whole("questions", questions),
        "threshold": threshold,
        "accuracy": accuracy,
        "model": model,
        "leave_out": leave_out,
    }
    from sourdine.text.desk import Desk  # noqa: PLC0415

    table = Desk(folder)
    with table.claim("run") as mine, progress(not json) as tell:
        if not mine:
            raise InputError(f"another process works on {folder}; wait for it, or name another folder.")
        _check_folder(folder, resume)
        run = _Run(own, others, copies, classes, budget, count, folder, model, device, tell)
        run.ask(settings, resume)
        found = run.finish(test, encoding)
        (table.beside / "run.lock").unlink(missing_ok=True)
    _say(found, folder, json)


class _Run:
    """One run, from records to the sealed folder; every step is one method."""

    def __init__(
        self,
        own: Corpus,
        others: Corpus,
        copies: Overlap,
        classes: list[str],
        budget: Budget,
        teachers: int,
        folder: Path,
        model: str | None,
        device: str | None,
        tell: Tell | None,
    ) -> None:
        self.own, self.others, self.copies = own, others, copies
        self.classes, self.budget = classes, budget
        self.teachers, self.folder, self.model = teachers, folder, model
        self.tell = tell or (lambda stage, done, total, epsilon: None)
        self.read = reader(model, device, tell)

    def ask(self, settings: dict[str, Any], resume: bool) -> None:
        """Votes, the plan, its charge, and the answers."""
        import numpy as np  # noqa: PLC0415

        from sourdine.data.fingerprint import fingerprint  # noqa: PLC0415
        from sourdine.ledger import Ledger  # noqa: PLC0415
        from sourdine.pate.labelling import Labelling  # noqa: PLC0415
        from sourdine.pate.release import ANSWERS, read_answers  # noqa: PLC0415

        self.fingerprint = fingerprint(self.own.table())
        self.left_out = bool(settings["leave_out"])
        plan = self._planned(settings, resume)
        self.features = self.read(self.others.texts)
        # An order that is no secret, and has nothing to do with how the file of texts is sorted.
        self.order = np.random.default_rng(0).permutation(len(self.features))
        votes = self._votes()[self.order[: plan["questions"]]]
        ledger = Ledger(self.folder / "ledger.sqlite", self.budget, lazy=True)
        self.answers = read_answers(self.folder / ANSWERS)
        entries = ledger.history()
        self.labelling = Labelling(
            _aggregator(plan),
            ledger,
            questions=plan["questions"],
            answers=plan["answers"],
            data=self.fingerprint,
            go_on=(entries[0], self.answers) if entries else None,
        )
        self.votes: Votes = votes
        self._answered()

    def _planned(self, settings: dict[str, Any], resume: bool) -> dict[str, Any]:
        """The plan of the folder, made and written down if there is none yet; it sees no vote."""
        from dataclasses import asdict  # noqa: PLC0415

        from sourdine.data.fingerprint import fingerprint  # noqa: PLC0415
        from sourdine.text.desk import read, write  # noqa: PLC0415

        path = self.folder / _PLAN
        asked = {
            **settings,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "teachers": self.teachers,
            "classes": self.classes,
            "data": self.fingerprint,
            "public": fingerprint(self.others.table()),
        }
        if resume:
            known = read(path) or {"asked": {}}
            if other := [name for name, value in asked.items() if known["asked"].get(name) != value]:
                raise InputError(
                    f"{self.folder} holds another run: {', '.join(other)} differ; go on with its "
                    "settings."
                )
            return known
        chosen, questions, answers = _drawn_up(
            settings, self.budget, self.teachers, self.classes, len(self.others)
        )
        plan = {
            "asked": asked,
            "kind": chosen.name,
            "noise": asdict(chosen),
            "questions": questions,
            "answers": answers,
        }
        write(path, plan)
        return plan

    def _votes(self) -> Votes:
        from sourdine.pate.teachers import fit_heads, partitions  # noqa: PLC0415
        from sourdine.text.examples import NOTHING  # noqa: PLC0415
        from sourdine.text.tasks import Classify  # noqa: PLC0415

        targets = Classify(tuple(self.classes)).classes(self.own.labels or [])
        left_out = self.copies.places if self.left_out else ()
        targets = [NOTHING if at in left_out else own for at, own in enumerate(targets)]
        parts = partitions(self.own, self.teachers)
        features = self.read(self.own.texts, alone=True)
        heads = fit_heads(features, targets, parts, len(self.classes))
        return heads.vote(self.features)

    def _answered(self) -> None:
        """Asks until the plan is used up; what is answered is on the disk before it is shown."""
        from sourdine.accounting import curve  # noqa: PLC0415
        from sourdine.pate.release import ANSWERS, write_answers  # noqa: PLC0415

        labelling = self.labelling
        while not labelling.over and len(self.answers) < len(self.votes):
            start = len(self.answers)
            found = labelling.ask(self.votes[start : start + _CHUNK])
            write_answers(self.folder / ANSWERS, found, start)
            self.answers = self.answers + found
            spent = labelling.aggregator.plan(labelling.asked, max(1, labelling.answered))
            epsilon = curve(spent, "zero-out", accuracy=1e-2).epsilon_upper(self.budget.delta)
            self.tell("asking", labelling.asked, labelling.questions, epsilon)

    def finish(self, test: str | None, encoding: str) -> dict[str, Any]:
        """The student, its test, the owner's page and the seal."""
        import numpy as np  # noqa: PLC0415

        from sourdine.data.owner import BESIDE  # noqa: PLC0415
        from sourdine.pate import owner  # noqa: PLC0415
        from sourdine.pate.aggregators import NO_ANSWER  # noqa: PLC0415
        from sourdine.pate.release import About, seal  # noqa: PLC0415
        from sourdine.pate.student import fit_student  # noqa: PLC0415
        from sourdine.text.prepared import default_model, units_of  # noqa: PLC0415
        from sourdine.text.run import named_base  # noqa: PLC0415

        known = np.full(len(self.features), NO_ANSWER)
        known[self.order[: len(self.answers)]] = self.answers.labels
        student = fit_student(self.features, known, len(self.classes))
        metrics = {} if test is None else self._tested(student, test, encoding)
        about = About(
            self.fingerprint,
            len(self.own),
            None if self.own.users is None else units_of(self.own),
            self.own.text,
            self.own.label,
            named_base(self.model or default_model()),
            self.teachers,
            student.weight.size + student.bias.size,
            len(self.features),
            student.how,
            self._accesses(),
        )
        sealed = seal(
            self.folder,
            lambda to: self._save(student, to),
            metrics,
            self.labelling,
            about,
            working=(_PLAN,),
        )
        beside = self.folder.with_name(self.folder.name + BESIDE)
        seen = self.votes[: len(self.answers)]
        page = owner.write(beside, self.labelling, seen, self.answers, [self.copies.sentence()])
        return _found(sealed, self.labelling, metrics, page)

    def _accesses(self) -> list[Access]:
        """What the comparison with the public text gives away."""
        from sourdine.certificate import Access  # noqa: PLC0415
        from sourdine.events import NOTHING  # noqa: PLC0415

        what = "a comparison of every record with the public text"
        if self.left_out:
            why = "copies teach nothing, and nobody is told; each depends on itself and on public text"
            return [Access(what, NOTHING, why)]
        return [Access(what, None, "that this run was made tells that there are no copies")]

    def _tested(self, student: Student, test: str, encoding: str) -> dict[str, Any]:
        """Exact metrics on labelled texts that the owner declares public."""
        from sourdine.data.corpus import read_corpus  # noqa: PLC0415
        from sourdine.text.releases import Confusion  # noqa: PLC0415
        from sourdine.text.tasks import Classify  # noqa: PLC0415

        rows = read_corpus(test, text=list(self.own.text), label=self.own.label, encoding=encoding)
        own = set(zip(*self.own.texts, strict=True))
        if 2 * sum(row in own for row in zip(*rows.texts, strict=True)) > len(rows):
            raise InputError("--test holds private records; an exact test needs public ones.")
        goal = Classify(tuple(self.classes))
        truth = goal.classes(rows.labels or [])
        named = student.predict(self.read(rows.texts)).tolist()
        matrix = Confusion(len(self.classes), 1.0).count(truth, named)
        said = {name: vars(found) for name, found in goal.metrics(matrix, 0.0, len(rows)).items()}
        how = f"exact, on {len(rows):,} records that the owner declares public"
        return {**said, "records": len(rows), "how": how, "reference": None}

    def _save(self, student: Student, folder: Path) -> None:
        """The student as a model that sourdine.load knows."""
        import torch  # noqa: PLC0415

        from sourdine.text.model import TextModel  # noqa: PLC0415
        from sourdine.text.models import load_encoder  # noqa: PLC0415
        from sourdine.text.prepared import default_model  # noqa: PLC0415
        from sourdine.text.tasks import Classify  # noqa: PLC0415

        encoder, tokenizer, pooling = load_encoder(self.model or default_model())
        goal = Classify(tuple(self.classes))
        network = goal.model(encoder, pooling, 1.0)
        with torch.no_grad():
            network.head.weight.copy_(torch.from_numpy(student.weight))
            network.head.bias.copy_(torch.from_numpy(student.bias))
        most = min(128, getattr(encoder.config, "max_position_embeddings", None) or 128)
        TextModel(network, tokenizer, goal, most, len(self.own.texts)).save(folder)


def _check_folder(folder: Path, resume: bool) -> None:
    if resume and not (folder / _PLAN).exists():
        raise InputError(f"there is no unfinished run in {folder}; leave --resume out to start one.")
    if not resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder} is there already; name a new folder with --out, or go on with --resume."
        )


def _check_sizes(own: Corpus, teachers: int, budget: Budget) -> None:
    from sourdine.text.prepared import units_of  # noqa: PLC0415

    units = units_of(own)
    checks.delta(budget.delta, units)
    if units < 5 * teachers:
        raise InputError(
            f"{teachers} teachers would share {units} {budget.unit}s, fewer than 5 each; take fewer "
            "teachers, or DP-SGD: sourdine train."
        )


def _copies(own: Corpus, others: Corpus, leave_out: bool) -> Overlap:
    """Private records in the public text: refused, or left out of training without a word."""
    from sourdine.data.overlap import overlap  # noqa: PLC0415

    found = overlap(own, others)
    if found and not leave_out:
        raise InputError(
            f"{found.sentence()} Text that is private must not stand in the public file: its rows are "
            "handed on. Take other public texts; or, if they are public indeed, leave the private "
            "copies out of training with --leave-out-copies. (This is for your eyes only.)"
        )
    return found


def _drawn_up(
    settings: dict[str, Any], budget: Budget, teachers: int, classes: list[str], most: int
) -> tuple[Aggregator, int, int]:
    """Aggregator, questions and answers; from the budget and made-up votes alone."""
    from sourdine.pate.aggregators import ConfidentGNMax, LNMax  # noqa: PLC0415
    from sourdine.pate.planner import fit_noise, plan_blindly  # noqa: PLC0415

    kind, asked = settings["aggregator"], min(settings["questions"] or most, most)
    if settings["threshold"] is not None and kind != "confident":
        raise InputError("--threshold is for --aggregator confident.")
    if kind == "lnmax":
        return fit_noise(budget, LNMax(teachers / 4), asked, asked), asked, asked
    found = plan_blindly(
        budget,
        teachers,
        len(classes),
        asked,
        accuracy=settings["accuracy"],
        check={"best": None, "gnmax": False, "confident": True}[kind],
    )
    chosen, questions, answers = found.aggregator, found.questions, found.answers
    if settings["threshold"] is not None and isinstance(chosen, ConfidentGNMax):
        from dataclasses import replace  # noqa: PLC0415

        chosen = replace(chosen, threshold=settings["threshold"])
    return chosen, questions, answers


def _aggregator(plan: dict[str, Any]) -> Aggregator:
    from sourdine.pate import aggregators  # noqa: PLC0415

    kinds: tuple[Any, ...] = (aggregators.GNMax, aggregators.ConfidentGNMax, aggregators.LNMax)
    found: Aggregator = next(kind(**plan["noise"]) for kind in kinds if kind.name == plan["kind"])
    return found


def _found(
    sealed: Certificate, labelling: Labelling, metrics: dict[str, Any], page: Path
) -> dict[str, Any]:
    promise = sealed.document["guarantee"]
    names = ("epsilon", "epsilon_lower", "delta", "unit", "adjacency")
    return {
        **{name: promise[name] for name in names},
        "aggregator": labelling.aggregator.name,
        "asked": labelling.asked,
        "answered": labelling.answered,
        "not_for_release": str(page),
        **metrics,
    }


def _say(found: dict[str, Any], folder: Path, json: bool) -> None:
    if json:
        print_json({"folder": str(folder), **found})
        return
    print(
        f"trained by PATE: epsilon <= {above(found['epsilon'])} at delta = {found['delta']:g} per "
        f"{found['unit']} ({found['adjacency']})"
    )
    print(f"{found['answered']:,} of {found['asked']:,} questions answered, {found['aggregator']}")
    for name in ("accuracy", "macro_f1"):
        if name in found:
            one = found[name]
            print(
                f"{name.replace('_', ' ')} {one['value']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
            )
    print(f"the run lies in {folder}: report.html is for people")
    print(f"check it: sourdine verify {folder}")
    print(f"for your eyes only: {found['not_for_release']}")
