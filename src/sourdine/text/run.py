"""A finished run: its model, what it released, its certificate; and how its folder is written.

Order: weights and metrics, then card and report from the draft of the certificate, then the seal; what
only a run that goes on needs is removed last. Whatever stops it before the seal, the run can go on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from sourdine import certificate as papers
from sourdine.audit.scored import Scored, audits, read, write
from sourdine.certificate import Access, Certificate
from sourdine.data.corpus import Corpus
from sourdine.data.fetch import fetched
from sourdine.data.fingerprint import fingerprint
from sourdine.digits import above
from sourdine.errors import CheckError, InputError, SourdineError
from sourdine.events import NOTHING
from sourdine.ledger import Ledger
from sourdine.modes import for_release
from sourdine.report.card import card
from sourdine.report.page import page
from sourdine.report.reading import classes, measurements, useless
from sourdine.sgd.charge import Charge
from sourdine.text.accounts import Accounts
from sourdine.text.base import Base
from sourdine.text.model import TextModel
from sourdine.text.models import BYTES
from sourdine.text.plan import Plan
from sourdine.text.unsaved import Unsaved

_NUMBERS = (
    "float32; noise of a ChaCha20 stream, two Gaussians added up, the sum rounded to a grid "
    "(sourdine.sgd.noise)"
)


NOT_PRIVATE = "NOT PRIVATE"


@dataclass(eq=False, repr=False)
class Run:
    """What `Trainer.fit` gives back. metrics: only what may be released.

    unsaved: holds the folder of a run that nobody has named; it goes with this object.
    """

    folder: Path
    model: TextModel
    metrics: dict[str, Any]
    certificate: Certificate | None = None
    not_for_release: Path | None = None
    unsaved: Unsaved | None = None

    def __repr__(self) -> str:
        said = ["NOT PRIVATE" if self.certificate is None else f"epsilon={self.epsilon:.6g}"]
        said += [
            f"{name}={self.metrics[name]['value']:.3f}"
            for name in ("accuracy", "largest_class", "matthews")
            if name in self.metrics
        ]
        said += ["no better than the largest class"] if useless(self.metrics) else []
        return f"Run({str(self.folder)!r}, {', '.join(said)})"

    @property
    def epsilon(self) -> float:
        """The proven bound of the certificate."""
        if self.certificate is None:
            raise InputError("this run has no certificate: it was not private, or seeded.")
        return self.certificate.epsilon

    def save(self, folder: str | Path) -> Path:
        """Copies the run folder to where it is wanted, sealed as it is."""
        to = Path(folder).expanduser()
        if to.exists() and any(to.iterdir()):
            raise InputError(f"{to} is not empty; name a new folder for the run.")
        try:
            shutil.copytree(self.folder, to, dirs_exist_ok=True)
        except OSError as error:
            raise SourdineError(f"the run cannot be saved to {to}: {error}.") from None
        if self.unsaved is not None:
            self.unsaved.remove()
        self.folder, self.unsaved = to, None
        return to

    def predict(self, *texts: Sequence[str]) -> list[str]:
        """The most likely label of each text, or of each pair."""
        return self.model.predict(*texts)

    def _repr_html_(self) -> str:
        """For Jupyter: the certificate, or the words that there is none."""
        head = "<b>NOT PRIVATE</b>" if self.certificate is None else self.certificate._repr_html_()
        rows = "".join(
            f"<tr><th style='text-align:left'>{one.name}</th><td>{one.value:.3f} "
            f"({one.low:.3f} to {one.high:.3f})</td></tr>"
            for one in measurements(self.metrics)
        )
        said = [useless(self.metrics), str(self.metrics.get("how", ""))]
        named = classes(self.metrics)
        said += [f"Classes: {named}"] if named else []
        return f"{head}<table>{rows}</table>" + "".join(f"<p>{escape(x)}</p>" for x in said if x)


@dataclass(frozen=True)
class About:
    """What a certificate says about the records, in words that hold for every neighbour of them.

    units: their public number, None where it is private. trained, tested: how many, as far as that may
    be told ("" without a test). computed: how the sums were made. before: the run that the base model
    comes from, if it was trained before.
    """

    train: Corpus
    units: int | None
    trained: str
    tested: str
    test_is_public: bool
    base: str
    contribution_bound: int
    computed: str
    before: Base | None = None


def seal_run(
    run: Run,
    charge: Charge,
    accounts: Accounts,
    plan: Plan,
    about: About,
    working: Sequence[str],
    shown: Sequence[Scored] = (),
) -> None:
    """Writes everything, draws up the certificate, seals it, and removes the working files.

    shown: what an attacker sees of canaries. Raises CheckError where that is more than was promised;
    the folder stays an unfinished one, with the canaries and the ledger.
    """
    try:
        ledger = charge.published(run.folder)
        found = audited(run.folder, ledger, shown) if shown else None
        run.model.save(run.folder)
        _write(run.folder / "metrics.json", run.metrics)
        draft = _draft(run, charge, ledger, accounts, plan, about, found)
        document = draft.document
        (run.folder / "README.md").write_text(card(document, run.metrics), encoding="utf-8")
        (run.folder / "report.html").write_text(page(document, run.metrics), encoding="utf-8")
        papers.seal(run.folder, draft, besides=working)
    except OSError as error:
        raise SourdineError(
            f"the run folder {run.folder} cannot be written: {error.strerror}. The training is done "
            "and kept; make room and start the same command with --resume."
        ) from None
    for name in working:
        (run.folder / name).unlink(missing_ok=True)
    run.certificate = Certificate.from_json((run.folder / "certificate.json").read_text("utf-8"))


def audited(folder: Path, ledger: Ledger, shown: Sequence[Scored]) -> list[dict[str, Any]]:
    """Writes down what canaries show, and gives the lines that the certificate has for it."""
    write(folder, shown)
    claimed, delta = papers.guarantee(ledger).epsilon, ledger.budget.delta
    # Rounded as written: whoever computes the bound again finds the same one.
    found = audits(read(folder), delta)
    for one in found:
        if one.bound.epsilon > claimed:
            raise CheckError(
                f"{one.kind} show an epsilon of at least {one.bound.printed} at delta={delta:g} with "
                f"confidence {one.bound.confidence:g}, but {above(claimed)} is claimed. There is no "
                "certificate, and the model must not be given away: look for noise or clipping that "
                "is not what was accounted for."
            )
    return [one.line() for one in found]


def _draft(
    run: Run,
    charge: Charge,
    ledger: Ledger,
    accounts: Accounts,
    plan: Plan,
    about: About,
    audit: Sequence[Mapping[str, Any]] | None,
) -> Certificate:
    budget, train = charge.budget, about.train
    accesses = accounts.accesses(charge, about.trained, about.tested)
    if about.units is not None:
        accesses.append(
            Access(
                f"the number of {budget.unit}s",
                NOTHING,
                f"public under {budget.adjacency}: a unit is replaced, not removed",
            )
        )
    if accounts.labels is None:
        accesses.append(
            Access("the label set", NOTHING, "declared by the owner, not read off the data")
        )
    if about.before is not None:
        accesses += about.before.accesses(budget)
    if about.test_is_public and about.tested:
        accesses.append(
            Access(
                f"an exact test on {about.tested}", NOTHING, "the owner declares these records public"
            )
        )
    if run.metrics.get("reference"):
        accesses.append(
            Access(
                "a model trained without privacy, and its exact metrics",
                None,
                "the owner declares that those records may be used so; the report shows them",
            )
        )
    if run.not_for_release is not None:
        accesses.append(
            Access(
                "exact counts of copies, classes and rows per person, for the owner",
                None,
                "kept beside the run folder, not for release",
            )
        )
    named = papers.sampling(charge.event())
    counted = "UNKNOWN" if about.units is None else about.units
    trained_weights = sum(x.numel() for x in _trained(run.model, plan))
    return papers.draft(
        ledger,
        shared=charge.shared,
        what="a text classifier: its weights, its labels, and its metrics",
        to=accounts.seen_by,
        contribution_bound=about.contribution_bound,
        accesses=accesses,
        sampling_assumed=named,
        sampling_executed=named,
        source=charge.kind or "secure",
        numbers=_NUMBERS,
        utility=run.metrics,
        **({} if audit is None else {"audit": audit}),
        data={
            "fingerprint": fingerprint(train.table()),
            "records": counted if train.users is None else "UNKNOWN",
            "users": "UNKNOWN" if train.users is None else counted,
            "text": list(train.text),
            "label": train.label,
        },
        model={
            "base": named_base(about.base),
            "trained": plan.strategy.name,
            "parameters": trained_weights,
        },
        training={
            "lot_size": plan.lot_size,
            "steps": plan.steps,
            "clip": plan.clip,
            "noise_multiplier": charge.noise_multiplier,
            "learning_rate": plan.learning_rate,
            "max_length": plan.max_length,
            "computed": about.computed,
            "plan": list(plan.reasons.values()),
            **accounts.about,
        },
        not_covered=accounts.not_covered(),
        made=accounts.made(ledger),
    )


def write_plain(run: Run, heading: str, about: Mapping[str, Any]) -> None:
    """A run without a certificate: its model and metrics, and the reason on every page."""
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        run.model.save(run.folder)
        _write(run.folder / "metrics.json", {"privacy": heading, **run.metrics})
        lines = [f"# {heading}", "", "This model carries no differential privacy certificate."]
        lines += [f"- {name}: {value}" for name, value in about.items()]
        (run.folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for_release(run.folder)
    except OSError as error:
        raise SourdineError(
            f"the run folder {run.folder} cannot be written: {error.strerror}; make room."
        ) from None


def read_reference(folder: Path) -> dict[str, Any]:
    """The metrics of a run without privacy, to be shown beside those of a private one."""
    try:
        found = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        if found["privacy"] != NOT_PRIVATE:
            raise KeyError
        names = [
            name for name, metric in found.items() if isinstance(metric, dict) and "value" in metric
        ]
        reference = {**{name: found[name]["value"] for name in names}, "how": found["how"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{folder} is not the folder of a run without privacy; make one with --not-private."
        ) from None
    if not names:
        raise InputError(
            f"the run in {folder} was tested on no records, so there is nothing to show beside "
            "another; train it with --held-out 0.2 or --test. Nothing was charged."
        )
    return reference


def named_base(base: str) -> str:
    """The name of a model without the path of somebody's machine."""
    if base == BYTES:
        return "a transformer on bytes, with random weights"
    if fetched("minilm") is not None and Path(base) == fetched("minilm"):
        return "sentence-transformers/all-MiniLM-L6-v2"
    return Path(base).name if Path(base).exists() else base


def _trained(model: TextModel, plan: Plan) -> list[Any]:
    return [x for x in model.network.parameters() if x.requires_grad] or list(
        model.network.head.parameters()
    )


def _write(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(dict(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")
