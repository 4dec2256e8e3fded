"""Losses are per example, padding is silent, and each strategy trains what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import WORDS, causal, encoder, torch

from sourdine.errors import InputError
from sourdine.text.examples import NOTHING, Collate, Features, tokenized
from sourdine.text.model import TextModel
from sourdine.text.models import BYTES, load_encoder
from sourdine.text.strategies import STRATEGIES, Biases, Everything, Head, LoRA, Prompt, strategy
from sourdine.text.tasks import Classify, OnFeatures, losses

GOAL = Classify(("good", "bad", "plain"))
TEXTS = ["great film", "the film was awful and dull", "a story of people", "boring"]
OTHER = "lovely places"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "encoder": encoder(folder / "encoder"),
        "causal": causal(folder / "causal"),
        "bytes": BYTES,
    }


def made(name: str, models: dict[str, str], what: str) -> tuple[Any, Any]:
    """A classifier with a head that is not zero, ready to be trained so."""
    torch.manual_seed(1)
    found, tokenizer, pooling = load_encoder(models[name])
    model = GOAL.model(found, pooling, 2.0)
    strategy(what).prepare(model)
    with torch.no_grad():
        model.head.weight.normal_()
        for parameter in model.parameters():
            if parameter.requires_grad:  # LoRA starts with zeros
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval(), tokenizer


def batch(tokenizer: Any, texts: list[str], classes: list[int]) -> dict[str, Any]:
    return Collate(tokenizer.pad_token_id)(tokenized(tokenizer, [texts], classes, 32))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("what", STRATEGIES)
@pytest.mark.parametrize("name", ["encoder", "causal", "bytes"])
def test_one_example_moves_its_own_loss_only(
    name: str, what: str, half: bool, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sourdine.text.machine.multiplies_halves", lambda device: half)
    model, tokenizer = made(name, models, what)
    classes = [0, 1, 2, 1]
    before = losses(model, batch(tokenizer, TEXTS, classes))
    assert before.shape == (4,)
    for place in range(4):
        texts = list(TEXTS)
        texts[place] = OTHER
        after = losses(model, batch(tokenizer, texts, classes))
        rest = [i for i in range(4) if i != place]
        assert torch.allclose(after[rest], before[rest], rtol=1e-5, atol=1e-6)
        if not half:  # halves have too few digits for the smallest moves
            assert abs(after[place] - before[place]) > 1e-3


def test_a_head_on_features_is_per_example() -> None:
    torch.manual_seed(1)
    model = OnFeatures(torch.nn.Linear(8, 3))
    rows = Features(torch.randn(5, 8), [0, 1, 2, 1, 0])
    data = torch.utils.data.default_collate([rows[i] for i in range(5)])
    before = losses(model, data)
    data["features"][2] += 1
    after = losses(model, data)
    assert [i for i in range(5) if after[i] != before[i]] == [2]


def test_an_average_over_the_batch_is_not_per_example(models: dict[str, str]) -> None:
    """The twin: the test above would see it."""
    model, tokenizer = made("encoder", models, "all")

    def mixed(text: str, own: int) -> Any:
        each = losses(model, batch(tokenizer, [text, *TEXTS[1:]], [own, 1, 2, 1]))
        return each - each.mean()

    before, after = mixed(TEXTS[0], 0), mixed(OTHER, 1)
    assert not torch.allclose(after[1:], before[1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["encoder", "causal", "bytes"])
def test_padding_is_silent(name: str, models: dict[str, str]) -> None:
    model, tokenizer = made(name, models, "all")
    alone = torch.cat([losses(model, batch(tokenizer, [text], [0])) for text in TEXTS])
    together = losses(model, batch(tokenizer, TEXTS, [0] * 4))
    assert torch.allclose(alone, together, rtol=1e-4, atol=1e-5)


def test_a_record_of_no_class_adds_nothing(models: dict[str, str]) -> None:
    model, tokenizer = made("encoder", models, "all")
    found = losses(model, batch(tokenizer, TEXTS, [0, NOTHING, 2, NOTHING]))
    assert found[1] == found[3] == 0
    found[1].backward(retain_graph=True)
    assert all(x.grad is None or not x.grad.any() for x in model.parameters())


def test_what_trains(models: dict[str, str]) -> None:
    def trained(what: str) -> set[str]:
        model, _ = made("encoder", models, what)
        return {name for name, x in model.named_parameters() if x.requires_grad}

    head = {"head.weight", "head.bias"}
    assert trained("head") == head
    assert trained("prompt") == {*head, "prompt"}
    biases = trained("bitfit") - head
    assert biases and all(name.endswith("bias") for name in biases)
    additions = trained("lora") - head
    assert additions and all("lora" in name for name in additions)
    everything = trained("all")
    assert len(everything) > len(biases) and not any("embeddings.word" in name for name in everything)
    for what in STRATEGIES:
        assert not any("pooler" in name for name in trained(what))


def test_word_vectors_train_in_a_model_from_scratch(models: dict[str, str]) -> None:
    found, _, pooling = load_encoder(BYTES)
    model = GOAL.model(found, pooling, 2.0)
    Everything(words=True).prepare(model)
    assert model.encoder.embeddings.word_embeddings.weight.requires_grad


def test_lora_is_folded_in(models: dict[str, str]) -> None:
    model, tokenizer = made("encoder", models, "lora")
    data = batch(tokenizer, TEXTS, [0] * 4)
    before = model(data)
    LoRA().finish(model)
    assert not any("lora" in name for name, _ in model.named_parameters())
    assert torch.allclose(model(data), before, atol=1e-5)


@pytest.mark.parametrize("what", ["head", "prompt", "lora"])
def test_a_saved_model_says_the_same(what: str, models: dict[str, str], tmp_path: Path) -> None:
    from sourdine import load

    model, tokenizer = made("encoder", models, what)
    STRATEGIES[what]().finish(model)
    kept = TextModel(model, tokenizer, GOAL, 32)
    kept.save(tmp_path)
    again = load(tmp_path)
    assert torch.allclose(again.scores(TEXTS), kept.scores(TEXTS), atol=1e-5)
    assert again.predict(TEXTS) == kept.predict(TEXTS)
    assert again.probabilities(TEXTS).sum(1).tolist() == pytest.approx([1] * 4)
    with pytest.raises(InputError, match="a list of texts"):
        again.predict("great film")


@pytest.mark.parametrize("which", ["encoder", "causal", BYTES])
def test_transformers_refuses_what_it_would_load_wrongly(
    which: str, models: dict[str, str], tmp_path: Path
) -> None:
    """Its pipeline used to answer with a head of random weights, without an error."""
    import transformers

    found, tokenizer, pooling = load_encoder(models.get(which, which))
    TextModel(GOAL.model(found, pooling, 2.0), tokenizer, GOAL, 32).save(tmp_path)
    kinds = ["AutoModel", "AutoModelForSequenceClassification", "AutoModelForMaskedLM"]
    for kind in (*kinds, "AutoModelForCausalLM", "AutoConfig"):
        with pytest.raises(ValueError, match=r"load this folder with sourdine\.load"):
            getattr(transformers, kind).from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"load this folder with sourdine\.load"):
        transformers.pipeline("text-classification", str(tmp_path))
    # A class that is named outright takes any config, but finds no weights.
    for kind in ("BertForSequenceClassification", "BertModel", "GPT2ForSequenceClassification"):
        with pytest.raises(OSError, match="no file named"):
            getattr(transformers, kind).from_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


@pytest.mark.parametrize("what", ["head", "prompt"])
def test_a_folder_of_the_first_version_still_loads(
    what: str, models: dict[str, str], tmp_path: Path
) -> None:
    from sourdine import load

    model, tokenizer = made("encoder", models, what)
    kept = TextModel(model, tokenizer, GOAL, 32)
    kept.save(tmp_path)
    (tmp_path / "encoder.json").replace(tmp_path / "config.json")
    (tmp_path / "encoder.safetensors").replace(tmp_path / "model.safetensors")
    described = json.loads((tmp_path / "sourdine.json").read_text(encoding="utf-8"))
    assert described["version"] == 2
    (tmp_path / "sourdine.json").write_text(json.dumps({**described, "version": 1}), encoding="utf-8")
    assert torch.allclose(load(tmp_path).scores(TEXTS), kept.scores(TEXTS), atol=1e-5)
    (tmp_path / "sourdine.json").write_text(json.dumps({**described, "version": 3}), encoding="utf-8")
    with pytest.raises(InputError, match="update sourdine"):
        load(tmp_path)


def test_a_run_is_a_base_for_another_one(models: dict[str, str], tmp_path: Path) -> None:
    model, tokenizer = made("encoder", models, "all")
    with torch.no_grad():
        for weights in model.encoder.parameters():
            weights.add_(0.01)
    TextModel(model, tokenizer, GOAL, 32).save(tmp_path)
    again, _, _ = load_encoder(str(tmp_path))
    for name, weights in model.encoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], weights), name
    (tmp_path / "encoder.safetensors").unlink()
    with pytest.raises(InputError, match="cannot be loaded"):
        load_encoder(str(tmp_path))


def test_an_attack_refuses_a_run_folder_in_place_of_a_model_of_transformers(
    models: dict[str, str], tmp_path: Path
) -> None:
    from sourdine.attacks.adapters import features, from_folder
    from sourdine.attacks.target import Record

    model, tokenizer = made("encoder", models, "head")
    TextModel(model, tokenizer, GOAL, 32).save(tmp_path)
    with pytest.raises(InputError, match="is a run folder of sourdine"):
        from_folder(tmp_path)
    with pytest.raises(InputError, match="is a run folder of sourdine"):
        features(tmp_path, [Record(("great",))])


def test_a_model_of_bytes_needs_no_vocabulary(tmp_path: Path) -> None:
    from sourdine import load

    found, tokenizer, pooling = load_encoder(BYTES)
    kept = TextModel(GOAL.model(found, pooling, 2.0), tokenizer, GOAL, 64)
    kept.save(tmp_path)
    assert load(tmp_path).scores(["naïve 文 \x00"]).shape == (1, 3)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda folder: None, "there is no model folder"),
        (lambda folder: folder.mkdir(), "config.json is missing"),
        (lambda folder: _without(folder, "model.safetensors"), "holds no weights"),
        (lambda folder: _cut(folder, 2), "cannot be loaded"),
    ],
)
def test_a_model_that_cannot_be_used(build: Any, says: str, tmp_path: Path) -> None:
    build(tmp_path / "model")
    with pytest.raises(InputError, match=says):
        load_encoder(str(tmp_path / "model"))


def _without(folder: Path, name: str) -> None:
    encoder(folder)
    (folder / name).unlink()


def _cut(folder: Path, share: int) -> None:
    encoder(folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // share])


def test_missing_weights_do_not_stay_random(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(encoder(tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    kept = {name: x for name, x in weights.items() if "layer.1" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="lacks weights"):
        load_encoder(str(folder))


def test_labels_and_strategies_are_checked() -> None:
    with pytest.raises(InputError, match="at least two labels"):
        Classify(("a",))
    with pytest.raises(InputError, match="what trains is 'everything'"):
        strategy("everything")
    with pytest.raises(InputError, match="rank"):
        LoRA(0)
    with pytest.raises(InputError, match="prompt length"):
        Prompt(0)
    assert Head().name == "head" and Biases().name == "bitfit"
    assert len(WORDS) == len(set(WORDS))


def test_batches_are_padded_as_they_are_told() -> None:
    def length(tokens: int, collate: Collate) -> int:
        return int(collate([{"input_ids": [1] * tokens, "labels": 0}])["input_ids"].shape[1])

    assert [length(x, Collate(0)) for x in (1, 2, 3, 67)] == [2, 2, 4, 68]
    assert [length(x, Collate(0).at_least(72)) for x in (1, 72, 73)] == [72, 72, 74]
    assert [length(x, Collate(0, 70).at_least(72)) for x in (1, 70)] == [70, 70]
    assert [length(x, Collate(0, 71).at_least(72)) for x in (0, 1, 71)] == [71, 71, 71]
    assert length(1000, Collate(0, 70)) == 1000  # never cut here


def test_every_row_gets_its_own_numbers() -> None:
    """Of columns that are shorter or empty too, and whatever kind of sequence they are."""
    rows: list[dict[str, Any]] = [
        {"input_ids": [5, 6, 7], "attention_mask": [1, 1], "labels": 0},
        {"input_ids": np.array([8, 9]), "attention_mask": (1, 0), "labels": 1},
        {"input_ids": [], "attention_mask": [], "labels": 1},
    ]
    found = Collate(4)(rows)
    assert found["input_ids"].tolist() == [[5, 6, 7, 4], [8, 9, 4, 4], [4] * 4]
    assert found["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [0] * 4]
    assert found["labels"].tolist() == [0, 1, 1] and found["input_ids"].dtype == torch.int64
