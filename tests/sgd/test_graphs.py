"""A graph of a batch does what the eager code does, or is not used.

Graphs are run here as they were traced; test_compiler.py takes torch's compiler.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cutting import cut
from stopping import engine
from test_parity import TOLERANCE, clipped, each, error, losses_of, median, rows
from test_resume import again, run
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from zoo import ZOO, Case, torch

from sourdine.errors import CheckError, InputError, SourdineError
from sourdine.rng import seeded
from sourdine.sgd import Adaptive, clipped_sum
from sourdine.sgd import graphs as room
from sourdine.sgd.batches import Batch
from sourdine.sgd.clipping import Clip, Flat
from sourdine.sgd.graphs import Compiler, Graphs, Program, traced, unchanging
from sourdine.sgd.proofs import Knowledge, often
from sourdine.sgd.rounding import any_order, summed
from sourdine.sgd.sums import Sums

# The same models in other shapes, and some others, are left out to save time; so are those that are made
# of the layers of another one here. `benchmarks/engine/parity.py --graphs cut` takes the whole zoo.
ALIKE = {
    *("bert-eager", "minilm-mean-pooling", "multiple-choice", "electra", "distilbert", "gpt2-untied"),
    *("llama", "mistral", "qwen3", "gpt-neox", "gru-bidirectional"),
}
KINDS = [
    case
    for at, case in enumerate(ZOO)
    if not case.name.rpartition("-")[2].replace("x", "").isdigit() and at % (2 if at < 100 else 8) == 0
    if case.name not in ALIKE
]
# What has no graph, and why: the eager code stays in charge.
LEFT = {
    "looks at values": ("opt", "bart", "marian", "deberta-v2"),
    "keeps tensors beside its parameters": (
        *("prompt-tuning", "p-tuning-mlp", "p-tuning-lstm"),
        *("prefix-gpt2", "prefix-gpt2-projection", "prefix-bert"),
    ),
    "has to be proved for every batch": (
        *("bert-spans", "xlnet", "t5-gated-untied", "lstm-projection", "lstm-trained-first-state"),
        *("lora-bert-from-zero", "lora-gpt2-from-zero", "gru-trained-first-state"),
        *("one-example-at-a-time", "conv1d-one-example-at-a-time", "attention-bias-of-keys"),
        *("bare-through-a-function", "bare-normed", "losses-one-forward-each"),
    ),
}


class Made:
    """A model with its graphs and an eager twin for one loss."""

    def __init__(
        self, model: Any, loss: Any, clip: float | Clip = 1.0, compiler: Compiler = traced
    ) -> None:
        self.model, self.loss, self.clip = model, loss, clip
        self.knowledge = Knowledge()
        self.graphs = Graphs(model, loss, compiler=compiler)
        self.places = Sums([])
        self.made: list[bool] = []
        """Whether each batch was made by its graph."""

    def sums(self, data: Any, weights: Any = None) -> Any:
        """The sum of one batch, in one vector; dropout draws from one seed."""
        count = len(next(iter(data.values())))
        batch = Batch(data, torch.ones(count) if weights is None else weights, count, weights is None)
        self.begin()
        with torch.random.fork_rng(devices=[]):
            how = self.clip if isinstance(self.clip, Clip) else Flat(self.clip)
            seed()
            self.graphs.add(batch, how, self.knowledge, lambda: self.eagerly(batch), seed)
            by_graph = self.graphs.made == [True] and self.graphs.sound()
            if not self.graphs.sound():
                self.begin()
                self.eagerly(batch)
        self.made.append(by_graph)
        return torch.cat([x.grad.flatten() for x in self.model.parameters() if x.requires_grad])

    def begin(self) -> None:
        own = [x for x in self.model.parameters() if x.requires_grad]
        if [id(x) for x in own] != [id(x) for x in self.places.parameters]:
            self.places = Sums(own)
        self.places.begin()
        self.graphs.begin(self.places)

    def eagerly(self, batch: Batch) -> Any:
        seed()
        return clipped_sum(
            self.model,
            lambda: self.loss(self.model, batch.data),
            self.clip,
            examples=len(batch.weights),
            weights=batch.weights,
            knowledge=self.knowledge,
        )

    def wanted(self, data: Any) -> Any:
        self.model.zero_grad()
        with torch.random.fork_rng(devices=[]):
            seed()
            clipped_sum(self.model, lambda: self.loss(self.model, data), self.clip)
        return torch.cat([x.grad.flatten() for x in self.model.parameters() if x.requires_grad])


def seed() -> None:
    torch.manual_seed(7)


@each(KINDS)
def test_the_sums_of_a_graph_are_those_of_brute_force(case: Case) -> None:
    """Cut into the smallest pieces, as a compiler would get it."""
    model, batch, loss = case.make()
    wanted = rows(model, losses_of(case, model, loss, batch)())
    clip = median(wanted.norm(dim=1))
    made = Made(model, loss, clip, cut)
    with case.silence():
        made.sums(batch)
        made.sums(batch)
    assert error(model, clipped(wanted, clip)) <= TOLERANCE
    left = any(case.name in names for names in LEFT.values())
    assert made.made == [not left] * 2, made.graphs.reasons


class Net(nn.Module):
    """Embedding, a layer, dropout, and settings that are no tensors."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(30, 8), nn.Linear(8, 3)
        self.dropout, self.pace, self.seen = nn.Dropout(dropout), 1.0, None
        self.order: Any = None

    def forward(self, ids: Any) -> Any:
        hidden = torch.tanh(self.words(ids).mean(1) * self.pace)
        self.seen = hidden.detach()  # some models keep what they saw
        return self.out(self.dropout(hidden))


def net(dropout: float = 0.0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Net(dropout)


def data(start: int = 0) -> dict[str, Any]:
    ids = (torch.arange(20).view(4, 5) * 7 + start) % 30
    return {"ids": ids, "y": torch.tensor([0, 1, 2, 1]), "order": torch.arange(4)}


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch["ids"]), batch["y"], reduction="none")


@pytest.mark.parametrize("half", [False, True])
def test_one_example_stays_within_the_clip(half: bool) -> None:
    """Its own contribution, all others padding; in half precision too, where scaling rounds."""

    def cast(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return loss(model, batch).float()

    clip = 1e-3
    made = Made(net(), cast, clip)
    for one in torch.eye(4):
        norm = float(made.sums(data(), one).double().norm())
        assert 0.98 * clip < norm <= clip
    assert made.made == [True] * 4


@pytest.mark.parametrize("odd", [0, 2])
def test_a_graph_has_to_do_what_two_passes_do(odd: int) -> None:
    """What draws by itself, from Python's generator say: one of three passes was another."""
    passes: list[bool] = []

    def loss_of_its_own(model: Any, batch: Any) -> Any:
        fake = isinstance(batch["ids"], FakeTensor)
        if not passes or passes[-1] != fake:  # eagerly, perhaps more than once; traced; eagerly
            passes.append(fake)
        return loss(model, batch) * (2.0 if len(passes) - 1 == odd else 1.0)

    model = net()
    model(data()["ids"])  # it leaves something in itself
    made = Made(model, loss_of_its_own, 1e9)
    made.sums(data())
    assert made.made == [False]
    assert "does not do what the model does" in str(made.graphs.reasons)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 4097, 100_000])
def test_sums_in_any_order_are_rounded_upwards(count: int) -> None:
    """Equal terms, added one by one in single precision, would be off by more."""
    terms = torch.full((2, count), 0.1, dtype=torch.float32)
    exact = terms.double().sum(1)
    with any_order():
        found = summed(terms).double()
    assert (found >= exact).all() and (found <= exact * (1 + 2.0**-16)).all()
    signs = terms * (torch.arange(count) % 2 * 2 - 1)
    with any_order():
        found = summed(signs).double()
    assert (found >= signs.double().sum(1)).all()


def test_dropout_drops_the_same() -> None:
    made = Made(net(0.5), loss, 0.1)
    for start in range(3):
        torch.testing.assert_close(made.sums(data(start)), made.wanted(data(start)))
    assert made.made == [True] * 3


def test_a_padding_example_adds_nothing() -> None:
    made = Made(net(), loss, 0.1)
    alone = made.wanted({name: x[:3] for name, x in data().items()})
    padded = made.sums(data(), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    torch.testing.assert_close(padded, alone)


def test_the_model_is_left_as_it_was() -> None:
    model = net()
    before = {name: id(x) for name, x in model.named_parameters()}
    Made(model, loss).sums(data())
    assert {name: id(x) for name, x in model.named_parameters()} == before
    assert torch.isfinite(model.seen + 1).all()  # it has values: nothing of the tracing is left


def test_gradients_that_are_not_finite_are_left_to_the_eager_code() -> None:
    def broken(model: Any, batch: Any) -> Any:
        return loss(model, batch) * batch["scale"]

    made = Made(net(), broken, 0.1)
    made.model.seen = torch.zeros(1)  # as after a forward pass: the next batches share one graph
    for _ in range(3):
        made.sums({**data(), "scale": torch.ones(4)})
    scale = torch.tensor([1.0, float("inf"), 1.0, 1.0])
    found = made.sums({**data(), "scale": scale})
    assert made.made == [True, True, True, False]
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, made.wanted({**data(), "scale": scale}))
    assert len(made.graphs._graphs) == 1  # a batch that cannot tell, at a proof, drops no graph


def test_rows_that_begin_to_move_are_left_to_the_eager_code() -> None:
    def moving(model: Any, batch: Any) -> Any:
        scores = model(batch["ids"])[batch["order"]]
        return nn.functional.cross_entropy(scores, batch["y"], reduction="none")

    made = Made(net(), moving, 0.1)
    for _ in range(2):
        made.sums(data())
    with pytest.raises(CheckError, match="rows reordered"):  # its proof
        made.sums({**data(), "order": torch.tensor([1, 0, 3, 2])})
    assert made.made == [True, True]


def test_a_model_whose_settings_change_gets_a_new_graph() -> None:
    made = Made(net(), loss, 0.1)
    made.sums(data())
    made.model.pace = 3.0
    for _ in range(2):  # the first is seen to be of another model before its sums are used
        torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert made.made == [True, False, True]


def test_a_change_is_found_whatever_the_order_of_shapes_and_signs() -> None:
    sign = [1.0]

    def signed(model: Any, batch: Any) -> Any:
        return loss(model, batch) * sign[0]

    made = Made(net(), signed, 0.1)
    other = {name: x[:3] for name, x in data().items()}
    for _ in range(5):
        made.sums(data())
        made.sums(other)
    sign[0] = -1.0
    for _ in range(room._PROVED):  # until the next proof of its shape, at the latest
        found = made.sums(data()), made.sums(other)
    torch.testing.assert_close(found[0], made.wanted(data()))
    torch.testing.assert_close(found[1], made.wanted(other))


LOTS = {
    "one batch": [(4,)],
    "two": [(4, 3)],
    "three": [(4, 3, 2)],
    "one without a graph": [(-4, 3)],
    "lots by turns": [(4,), (3,), (2,), (1,)],
    "one that never comes again": [(1, 4)] + 600 * [(4, 3)],
}


@pytest.mark.parametrize("name", LOTS)
def test_proofs_go_where_most_batches_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One schedule for all shapes: were each proof of the next batch, one would never be due again."""
    made, proved, at, lots = Made(net(), loss, 0.1), list[tuple[int, int]](), 0, LOTS[name]
    settled, most = made.graphs._settled, Counter[int]()

    def watched(batch: Batch, *rest: Any) -> Any:
        proved.append((at, batch.units))
        return settled(batch, *rest)

    monkeypatch.setattr(made.graphs, "_settled", watched)
    for turn in range(4 * room._PROVED // len(lots[-1])):
        made.begin()
        for count in lots[turn % len(lots)]:
            at += count > 0
            part = {name: x[: abs(count)] for name, x in data().items()}
            batch = Batch(part, torch.ones(abs(count)), abs(count), True)
            if count < 0:
                batch.data["odd"] = object()
            eagerly = partial(made.eagerly, batch)
            made.graphs.add(batch, Flat(0.1), made.knowledge, eagerly, seed)
        assert made.graphs.sound()
        most[turn] = max(made.graphs._schedule.waiting.values(), default=0)
    due = [x for x in range(1, at) if often(x, room._PROVED)]
    counts = Counter(units for _, units in proved)
    assert len(proved) <= len(due) + len(counts), "the first of every shape, and what is due"
    assert len(proved) >= len(due) - 2
    assert max(most.values()) < 2.5 * room._PROVED, "nobody waits for ever"
    rare = {1} if name == "one that never comes again" else set()
    assert all(count > 1 for units, count in counts.items() if units not in rare)


def test_data_do_not_become_constants() -> None:
    class Labels:
        def __init__(self, values: list[int]) -> None:
            self.values = values

    def hidden(model: Any, batch: Any) -> Any:
        labels = torch.tensor(batch["y"].values)
        return nn.functional.cross_entropy(model(batch["ids"]), labels, reduction="none")

    made = Made(net(), hidden, 0.1)
    for labels in ([0, 1, 2, 1], [2, 2, 0, 0]):
        batch = {"ids": data()["ids"], "y": Labels(labels)}
        torch.testing.assert_close(made.sums(batch), made.wanted(batch))
    assert made.made == [False, False]
    assert len(made.graphs.reasons) == 1  # and not one for each batch

    def closed(model: Any, batch: Any) -> Any:
        labels = torch.tensor(outside[-1])
        return nn.functional.cross_entropy(model(batch["ids"]), labels, reduction="none")

    made = Made(net(), closed, 0.1)
    outside: list[list[int]] = []
    for labels in ([0, 1, 2, 1], [2, 2, 0, 0]):
        outside.append(labels)
        torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert "no input" in next(iter(made.graphs.reasons.values()))


def test_the_label_of_a_batch_of_one_does_not_become_a_constant() -> None:
    labels = [0]

    def closed(model: Any, batch: Any) -> Any:
        wanted = torch.tensor([labels[0]])
        return nn.functional.cross_entropy(model(batch["ids"]), wanted, reduction="none")

    made = Made(net(), closed, 0.1)
    for labels[0] in (0, 0, 0, 0, 2):
        one = {"ids": data()["ids"][:1]}
        torch.testing.assert_close(made.sums(one), made.wanted(one))
    assert "no input" in next(iter(made.graphs.reasons.values()))


def test_there_are_not_more_graphs_than_are_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_MOST", 5)
    made = Made(net(), loss, 0.1)
    for number in range(8):
        made.sums({**data(), "number": [number]})
    assert len(made.graphs._graphs) <= 5
    assert list(made.graphs.reasons.values()) == ["there are too many shapes"]


def test_a_graph_that_was_never_compared_is_not_used() -> None:
    def infinite(model: Any, batch: Any) -> Any:
        return loss(model, batch) * batch["scale"]

    made = Made(net(), infinite, 0.1)
    made.sums({**data(), "scale": torch.tensor([1.0, float("inf"), 1.0, 1.0])})
    assert not made.graphs._graphs and not made.graphs.reasons
    made.sums({**data(), "scale": torch.ones(4)})
    assert made.made == [False, True]


def test_other_strides_and_other_layers_are_another_graph() -> None:
    made = Made(net(), loss, 0.1)
    made.sums(data())
    turned = {**data(), "ids": data()["ids"].t().contiguous().t()}
    torch.testing.assert_close(made.sums(turned), made.wanted(turned))
    assert len(made.graphs._graphs) == 2
    made.model.out = nn.Linear(8, 4)
    torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert made.made == [True] * 3


def test_without_a_compiler_the_eager_code_goes_on() -> None:
    def missing(program: Program) -> Program:
        def run(*given: Any) -> Any:
            raise RuntimeError("no C++ compiler")

        return run

    made = Made(net(), loss, 0.1)
    made.graphs.compiler = missing
    torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert list(made.graphs.reasons.values()) == ["RuntimeError: no C++ compiler"]


def test_nothing_of_the_tracing_stays_in_lists_and_dicts() -> None:
    class Keeps(Net):
        def __init__(self) -> None:
            super().__init__()
            self.kept: dict[str, Any] = {}
            self.all: list[Any] = []

        def forward(self, ids: Any) -> Any:
            found = super().forward(ids)
            self.kept["last"] = found.detach()
            self.all.append(found.detach())
            return found

    made = Made(Keeps(), loss, 0.1)
    made.sums(data())
    assert made.made == [True]
    assert torch.isfinite(torch.stack([*made.model.all, made.model.kept["last"]])).all()


def test_a_frozen_layer_and_another_mode_are_another_graph() -> None:
    made = Made(net(0.5), loss, 0.1)
    made.sums(data())
    made.model.eval()
    for _ in range(2):  # the first is seen to be of another model, and made without its graph
        torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert len(made.graphs._graphs) == 2
    made.model.words.weight.requires_grad_(False)
    torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert made.made == [True, False, True, True]


def test_a_setting_of_any_module_is_another_graph() -> None:
    """Deep inside, shared, or put in the place of another: the model is looked at with each lot."""

    def look() -> bool:
        made.begin()
        made.graphs.made.append(True)
        return made.graphs.sound()

    made = Made(net(), loss, 0.1)
    shared = torch.nn.Sequential(torch.nn.Identity())
    made.model.first = torch.nn.ModuleList([shared, shared, torch.nn.Sequential(shared)])
    assert look()
    known = {made.graphs._watched.number}
    assert look()
    assert known == {made.graphs._watched.number}
    for module in list(made.model.modules()):
        for setting in (1, True):  # equal, but not the same
            module.setting = setting
            assert not look()
            assert made.graphs._watched.number not in known
            known.add(made.graphs._watched.number)
            assert look()
    shared[0] = torch.nn.Identity()
    assert not look()
    assert made.graphs._watched.number not in known


def test_what_has_no_graph_is_named() -> None:
    def curious(model: Any, batch: Any) -> Any:
        return loss(model, batch) * (2.0 if float(batch["ids"].sum()) > 1 else 1.0)

    made = Made(net(), curious)
    torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert "data-dependent" in next(iter(made.graphs.reasons.values()))
    moving = Made(net(), loss, Adaptive(0.1))
    moving.sums(data())
    assert list(moving.graphs.reasons.values()) == ["the clip moves with every step"]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_wrong_graph_is_found(dropout: float) -> None:
    """The comparison at each proof can fail."""
    made = Made(net(dropout), loss, 0.1)

    def wrong(program: Program) -> Program:
        def run(owned: Any, data: Any, weights: Any, sums: Any) -> Any:
            before = sums[0].clone()
            answer = program(owned, data, weights, sums)
            sums[0].neg_().add_(before, alpha=2)  # takes away instead of adding
            return answer

        return run

    made.graphs.compiler = wrong
    torch.testing.assert_close(made.sums(data()), made.wanted(data()))
    assert list(made.graphs.reasons.values()) == ["the graph does not do what the model does"]


# In the engine


def otherwise(program: Program) -> Program:
    """Stands for a compiler: nobody knows in which order it adds up."""
    return program


@pytest.mark.parametrize("compiler", [otherwise, traced])
def test_a_run_by_other_graphs_that_was_killed_is_charged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Any
) -> None:
    """A graph may be behind a model that is changed on the way, by a setting that it cannot see."""
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    began = run(engine(tmp_path / "run", graphs=compiler), 10)
    assert began.graphs is not None
    assert all(began.graphs.made)
    resumed = run(engine(tmp_path / "run", graphs=compiler))
    assert again(tmp_path / "run", resumed) == [7]


def weights_of(of: Any) -> Any:
    return torch.cat([x.detach().flatten() for x in of.model.parameters()])


def test_a_run_by_graphs_of_an_unchanging_model_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    whole = run(engine(tmp_path / "whole", graphs=unchanging, source=seeded(1)))
    began = run(engine(tmp_path / "run", graphs=unchanging, source=seeded(1)), 10)
    assert began.graphs is not None
    assert all(began.graphs.made)
    resumed = run(engine(tmp_path / "run", graphs=unchanging, source=seeded(1)))
    assert again(tmp_path / "run", resumed) == []
    assert torch.equal(weights_of(resumed), weights_of(whole))


def test_a_step_made_without_its_graph_the_second_time_never_meets_its_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are gone before the noise is drawn again; whoever goes on pays for the steps once more."""
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    run(engine(tmp_path / "run", graphs=unchanging), 10)
    monkeypatch.setattr(room, "_MOST", 0)
    drawn: list[int] = []
    other = engine(tmp_path / "run", graphs=unchanging)
    with monkeypatch.context() as patch, pytest.raises(SourdineError, match="Start the same command"):
        patch.setattr("sourdine.sgd.engine.add_noise_", lambda *given: drawn.append(1))
        run(other)
    assert drawn == []
    resumed = run(engine(tmp_path / "run", graphs=unchanging))
    assert resumed.done == resumed.steps
    assert again(tmp_path / "run", resumed) == [7]


@pytest.mark.parametrize("where", ["inside", "around"])
def test_autocast_around_a_step_is_the_same_as_in_its_loss(where: str) -> None:
    """A graph is traced under it, and held against the eager code, which is under it as well."""

    def half(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16) if where == "inside" else nullcontext():
            return nn.functional.cross_entropy(model(batch[0]).float(), batch[1], reduction="none")

    of = engine(None, loss=half, graphs=traced, check=False)
    with torch.autocast("cpu", torch.bfloat16, enabled=where == "around"):
        for lot in of.lots():
            of.step(lot)
            assert all(of.graphs.made), of.graphs.reasons
    assert all(graph.half for graph in of.graphs._graphs.values())


class KeepsGradients(torch.optim.SGD):
    """As torch's own do not, but others may: .grad is usually new in every step."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for x in group["params"]:
                self.state[x]["last"] = x.grad
        super().step()


def test_an_optimizer_that_keeps_gradients_never_sees_sums_without_noise() -> None:
    of = engine(None, graphs=traced, optimizer=KeepsGradients)
    with pytest.raises(InputError, match="the optimizer keeps gradients"):
        run(of)
    of = engine(None, optimizer=KeepsGradients, noise_multiplier=1000.0)
    for lot in of.lots():
        of._sums(lot)  # the sums of a lot that does not get to its noise
        kept = [state["last"].flatten() for state in of.optimizer.state.values()]
        assert not kept or float(torch.cat(kept).std()) > 50
        of.step(lot)


def test_a_lot_that_graphs_cannot_judge_is_made_without_them() -> None:
    """An example whose gradient is infinite adds nothing, and its lot is made by the eager code."""
    of = engine(None, graphs=traced)
    honest = of.loss
    seen: list[bool] = []

    def bad(model: Any, batch: Any) -> Any:
        return honest(model, batch) * of.scale

    of.scale = 1.0
    of.loss = of.graphs.loss = bad
    for lot in of.lots():
        of.scale = torch.inf if lot.step == 12 else 1.0
        of.step(lot)
        seen.append(all(torch.isfinite(x).all() for x in of.model.parameters()))
    assert all(seen)


def test_a_clip_that_is_changed_holds_at_once() -> None:
    of = engine(None, graphs=traced)
    for lot in of.lots():
        if lot.step == 10:
            of.clip = Flat(0.01)
        of._sums(lot)
        norm = float(of._places.flats[0].norm())
        assert norm <= of.clip.bound * len(lot._units)
        of.step(lot)


def test_what_somebody_writes_to_an_old_gradient_is_not_added() -> None:
    """Views of the sums can be kept from a proof; every lot begins from zero all the same."""
    of = engine(None, graphs=traced)
    kept: list[Any] = []
    honest = of.loss

    def keeps(model: Any, batch: Any) -> Any:
        kept.extend(x.grad for x in model.parameters() if x.grad is not None)
        return honest(model, batch)

    of.loss = of.graphs.loss = keeps
    for lot in of.lots():
        for view in kept:
            view.fill_(1e6)
        of._sums(lot)
        assert float(of._places.flats[0].norm()) < 1e3
        of.step(lot)
    assert kept
