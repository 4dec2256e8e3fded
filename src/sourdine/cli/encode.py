"""`sourdine encode`: private records as noisy vectors, to be handed on and trained on anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.options import (
    BudgetOfAll,
    Config,
    Data,
    Delta,
    Device,
    Encoding,
    Json,
    Label,
    Labels,
    LeaveOutCopies,
    Model,
    OtherLabels,
    SharedLedger,
    Text,
    import_training,
    listed,
    print_json,
    shared_ledger,
    training_budget,
    whole,
)
from sourdine.cli.owner import chosen_encoder, who_answers
from sourdine.cli.results import how_to_check
from sourdine.cli.train import progress
from sourdine.digits import above
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.data.corpus import Corpus
    from sourdine.encoding.encoder import InstanceEncoder, Mode
    from sourdine.encoding.encodings import Encodings
    from sourdine.encoding.labels import Labels as LabelPrivacy
    from sourdine.encoding.maps import Map
    from sourdine.encoding.noises import Noise
    from sourdine.ledger import Ledger

_SHORT = 0.02  # of public vectors; all others are as long as the clip


def encode(
    data: Data,
    text: Text = None,
    label: Label = None,
    labels: Labels = None,
    other_labels: OtherLabels = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The budget.")] = None,
    delta: Delta = None,
    ledger: SharedLedger = None,
    budget_of_all: BudgetOfAll = None,
    public: Annotated[
        str | None, typer.Option("--public", help="Public texts of the same kind, for map and clip.")
    ] = None,
    leave_out_copies: LeaveOutCopies = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="A new folder; notes-encoded for notes.csv.")
    ] = None,
    label_privacy: Annotated[
        str, typer.Option("--label-privacy", help="randomized, inside, or public: not protected.")
    ] = "randomized",
    share: Annotated[
        float, typer.Option("--label-share", help="Of epsilon, for randomized labels.")
    ] = 0.3,
    mode: Annotated[
        str, typer.Option("--mode", help="local, central or secret; texthide and paper: NOT private.")
    ] = "local",
    noise: Annotated[
        str, typer.Option("--noise", help="gaussian, laplace, 'laplace, l1 clip', 'laplace, radial'.")
    ] = "gaussian",
    dimension: Annotated[
        float | None, typer.Option("--dimension", help="Of the vectors, by --map; 32.")
    ] = None,
    map: Annotated[  # noqa: A002
        str, typer.Option("--map", help="pca, random, autoencoder, or none: all dimensions.")
    ] = "pca",
    clip: Annotated[
        float | None, typer.Option("--clip", help="Largest norm; from the public texts if not given.")
    ] = None,
    mixed: Annotated[float, typer.Option("--mixed", help="Records in a mixture.")] = 4,
    outputs: Annotated[float | None, typer.Option("--outputs", help="Mixtures to make.")] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(
            "--adjacency", help="replace-one or zero-out (default: replace-one, or the ledger's)."
        ),
    ] = None,
    model: Model = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Encode private texts as vectors with noise; the folder can be checked by a stranger.

    The encoder is public and frozen. Map and clip come from --public texts, never from the data. What
    is made of the encodings afterwards costs nothing more.

    Example: `sourdine encode notes.csv --text note --label diagnosis --labels yes,no --epsilon 8
    --public abstracts.csv`
    """
    import numpy as np  # noqa: PLC0415 (only now: other verbs start without it)

    if mode not in ("local", "central", "secret", "texthide", "paper"):
        raise InputError(f"the mode is local, central, secret, texthide or paper, not {mode!r}.")
    if (epsilon is None) != (mode == "texthide"):
        raise InputError(
            "TextHide has no epsilon; leave --epsilon out."
            if mode == "texthide"
            else "give --epsilon, the budget; 8 is usual for noise on single records."
        )
    classes = _classes(labels)
    check_public(model)
    _check_used(mode, ledger, budget_of_all, public, leave_out_copies, outputs)
    import_training()
    model = model or chosen_encoder()
    folder = out or Path(f"{Path(data).name.split('.')[0]}-encoded")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; name a new folder with --out.")
    from sourdine.data.declared import check_labels, check_option  # noqa: PLC0415
    from sourdine.text.frozen import Frozen  # noqa: PLC0415

    check_option(classes, other_labels)
    corpus, others = _read(data, public, text, label, encoding)
    found: dict[str, Any]
    if others is None:  # without a guarantee
        check_labels(classes, [corpus], other_labels=other_labels, ask=who_answers())
        with progress(not json) as tell:
            small = 1e-6 if delta is None else delta
            read = Frozen(model, device, tell)
            found = _plain(mode, epsilon, small, corpus, classes, read, mixed, outputs, folder)
        _say(found, folder, json)
        return
    # First all that can be refused without reading a text: reading takes minutes.
    usual = None if ledger else "replace-one"
    budget = training_budget(epsilon, delta, None, adjacency or usual, ledger)
    checks.delta(budget.delta, len(corpus))
    make = _maker(map, whole("dimension", dimension))
    how, shape, sound = _labels(label_privacy, share), _mode(mode, mixed, outputs), _noise(noise)
    shared = None if ledger is None else shared_ledger(ledger, budget.epsilon)
    check_labels(classes, [corpus], other_labels=other_labels, ask=who_answers())
    copies = _copies(corpus, others, leave_out_copies)
    with progress(not json) as tell:
        read = Frozen(model, device, tell)
        known = read(others.texts)
        chosen = make(known)
        if clip is None:
            clip = float(np.quantile(np.linalg.norm(chosen(known), axis=1), _SHORT))
        own = _watched(shared or budget, folder, corpus, encoding, budget_of_all)
        encoder = _encoder(
            own if shared is None else budget, None if shared is None else own,
            classes, chosen, clip, how, shape, sound,
        )  # fmt: skip
        # A public label stays: without it, it would show that the text stands among public ones.
        encoded = corpus.emptied(copies, labels=label_privacy != "public")
        found = _private(encoder, corpus, encoded, read, folder, model)
    _say(found, folder, json)


def _read(
    data: str, public: str | None, text: list[str] | None, label: str | None, encoding: str
) -> tuple[Corpus, Corpus | None]:
    """The private records and the public texts."""
    from sourdine.data.copies import refuse_same_table  # noqa: PLC0415
    from sourdine.data.corpus import read_corpus  # noqa: PLC0415

    refuse_same_table(data, public, "--public")
    corpus = read_corpus(data, text=text, label=label, encoding=encoding)
    if public is None:
        return corpus, None
    names = list(corpus.text)
    return corpus, read_corpus(public, text=names, label=None, encoding=encoding, labelled=False)


def _copies(corpus: Corpus, others: Corpus, leave_out: bool) -> frozenset[int]:
    from sourdine.data.copies import check_copies  # noqa: PLC0415

    return check_copies(corpus, [others], leave_out=leave_out, ask=who_answers()).places


def _watched(
    charged: Budget | Ledger, folder: Path, corpus: Corpus, encoding: str, budget_of_all: float | None
) -> Ledger:
    """The shared ledger, or a new one in the folder, as the register sees it."""
    from sourdine.ledger import Ledger  # noqa: PLC0415
    from sourdine.ledger.shared import FILE  # noqa: PLC0415
    from sourdine.register import watch  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(charged, Budget):
        charged = Ledger(folder / FILE, charged, lazy=True, nameless=True)
    return watch(charged, [corpus], encoding, budget_of_all=budget_of_all)


def _classes(labels: list[str] | None) -> list[str]:
    if not (found := listed(labels)):
        raise InputError("name the classes with --labels yes,no: they must be known without the data.")
    return found


def _check_used(
    mode: str,
    ledger: str | None,
    budget_of_all: float | None,
    public: str | None,
    leave_out_copies: bool,
    outputs: float | None,
) -> None:
    """Options that this mode would drop without a word are refused, and so is a missing one."""
    private = mode not in ("texthide", "paper")
    if not private and (ledger, budget_of_all) != (None, None):
        raise InputError(f"{mode} has no guarantee to charge; leave --ledger out.")
    if private and public is None:
        raise InputError(
            "give public texts of the same kind with --public: mean, directions and length of vectors "
            "are taken from them, as the private ones must not be asked."
        )
    if not private and (public is not None or leave_out_copies):
        raise InputError(f"{mode} reads no public texts; leave --public and --leave-out-copies out.")
    if mode == "local" and outputs is not None:
        raise InputError("local mode encodes each record by itself; leave --outputs out.")


def check_public(model: str | None) -> None:
    """An encoder that was trained on private text gives that away too."""
    folder = Path(model or "").expanduser()
    if model is not None and any(
        (folder / name).exists() for name in ("certificate.json", "ledger.sqlite", "metrics.json")
    ):
        raise InputError(
            f"{model} is the folder of a run: its model was trained on somebody's text, which would "
            "have to be charged as well. Take a public encoder; or InstanceEncoder(tuned=event)."
        )


def _maker(kind: str, dimension: int | None) -> Callable[[Any], Map]:
    """What makes the map from the features of public texts."""
    from sourdine.encoding import maps  # noqa: PLC0415

    makers = {
        "pca": maps.pca,
        "random": maps.random_projection,
        "autoencoder": maps.autoencoder,
    }
    if kind == "none":
        if dimension is not None:
            raise InputError("--map none keeps all dimensions; leave --dimension out.")
        return maps.whole
    if kind not in makers:
        raise InputError(f"the map is pca, random, autoencoder or none, not {kind!r}.")
    return lambda public: makers[kind](public, dimension or min(32, public.shape[1]))


def _noise(kind: str) -> Noise:
    from sourdine.encoding.noises import NOISES  # noqa: PLC0415

    if kind not in NOISES:
        raise InputError(f"the noise is one of {'; '.join(NOISES)}, not {kind!r}.")
    return NOISES[kind]()


def _labels(kind: str, share: float) -> LabelPrivacy:
    from sourdine.encoding.labels import LABELS, Randomized  # noqa: PLC0415

    if kind not in LABELS:
        raise InputError(f"labels are randomized, inside or public, not {kind!r}.")
    return Randomized(share) if kind == "randomized" else LABELS[kind]()


def _mode(kind: str, mixed: float, outputs: float | None) -> Mode:
    from sourdine.encoding.encoder import Central, Local, Secret  # noqa: PLC0415

    if kind == "local":
        return Local()
    made = Central if kind == "central" else Secret
    return made(checks.whole("mixed", mixed), whole("outputs", outputs))


def _encoder(
    budget: Budget | Ledger,
    shared: Ledger | None,
    classes: Any,
    chosen: Map,
    clip: float,
    labels: LabelPrivacy,
    mode: Mode,
    noise: Noise,
) -> InstanceEncoder:
    import numpy as np  # noqa: PLC0415

    from sourdine.encoding.encoder import InstanceEncoder  # noqa: PLC0415

    return InstanceEncoder(
        lambda texts: np.zeros((len(texts), 1)),  # features are made before, with progress
        budget,
        ledger=shared,
        classes=classes,
        map=chosen,
        clip=clip,
        labels=labels,
        mode=mode,
        noise=noise,
    )


def _private(
    encoder: InstanceEncoder,
    corpus: Corpus,
    encoded: Corpus,
    read: Any,
    folder: Path,
    model: str | None,
) -> dict[str, Any]:
    """encoded: the corpus, with records that stand in public texts emptied."""
    from sourdine.data.fingerprint import fingerprint  # noqa: PLC0415
    from sourdine.encoding.release import About, seal  # noqa: PLC0415
    from sourdine.text.prepared import default_model  # noqa: PLC0415
    from sourdine.text.run import named_base  # noqa: PLC0415

    made = encoder.encode_features(read(encoded.texts), encoded.labels or [])
    base = named_base(model or default_model())
    about = About(fingerprint(corpus.table()), len(corpus), corpus.text, corpus.label, base)
    promise = seal(folder, made, encoder, about).document["guarantee"]
    names = ("epsilon", "epsilon_lower", "delta", "unit", "adjacency", "mu")
    return {"private": True, **{name: promise[name] for name in names}, **_about(made)}


def _plain(
    mode: str,
    epsilon: float | None,
    delta: float,
    corpus: Corpus,
    classes: Any,
    read: Any,
    mixed: float,
    outputs: float | None,
    folder: Path,
) -> dict[str, Any]:
    from sourdine.encoding.labels import places  # noqa: PLC0415
    from sourdine.encoding.paper import Paper  # noqa: PLC0415
    from sourdine.encoding.release import write_plain  # noqa: PLC0415
    from sourdine.encoding.texthide import TextHide  # noqa: PLC0415

    scheme: TextHide | Paper
    if mode == "texthide":
        scheme = TextHide(mixed=checks.whole("mixed", mixed))
    else:
        scheme = Paper(epsilon or 0.0, delta, mixed=checks.whole("mixed", mixed))
    rows, targets = read(corpus.texts), places(corpus.labels or [], classes)
    made = scheme.encode(rows, targets, tuple(classes), outputs=whole("outputs", outputs))
    write_plain(folder, made)
    return {"private": False, **_about(made)}


def _about(made: Encodings) -> dict[str, Any]:
    return {"encodings": len(made), "dimension": made.vectors.shape[1], **made.about}


def _say(found: dict[str, Any], folder: Path, json: bool) -> None:
    if json:
        print_json({"folder": str(folder), **found})
        return
    size = f"{found['encodings']} vectors of {found['dimension']} numbers"
    if not found["private"]:
        print(f"encoded WITHOUT a guarantee ({found['privacy']}): {size}")
        if "guarantee" in found:
            print(found["guarantee"])
        print(f"they lie in {folder}, without a certificate")
        return
    print(
        f"encoded: {size}, epsilon <= {above(found['epsilon'])} at delta = {found['delta']:g} per "
        f"{found['unit']} ({found['adjacency']})"
    )
    print(f"labels {found['labels']}; {found['noise']} noise of scale {found['scale']:.4g}")
    print(f"they lie in {folder}: report.html is for people")
    for line in how_to_check(folder):
        print(line)
