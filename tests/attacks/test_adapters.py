"""Targets: the same answers as one text at a time, whatever the padding; good words for what cannot be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourdine.attacks.adapters import Function, Scikit, features, from_folder
from sourdine.attacks.causal import CausalModel, _temperature
from sourdine.attacks.target import Classifies, Generates, Predicts, Record, Sampling
from sourdine.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *["the", "a", "one", "red", "blue", "old", "new", "cat", "dog", "sat", "ran", "slept"],
]
TEXTS = ["the red cat sat", "a dog", "one old dog ran the red cat slept a new blue cat ran", "cat", ""]


def tokenizer(pad: bool = True, special: bool = True) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import BertProcessing

    words = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = Whitespace()
    if special:
        words.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "[SEP]"}
    if pad:
        names["pad_token"] = "[PAD]"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **names)


def saved(folder: Path, model: Any, words: Any) -> Path:
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def bert(**named: Any) -> Any:
    return transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=24,
        initializer_range=0.5,
        **named,
    )


def gpt2(**named: Any) -> Any:
    return transformers.GPT2Config(
        vocab_size=len(WORDS),
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=24,
        bos_token_id=2,
        eos_token_id=3,
        initializer_range=0.5,
        **named,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    names = {"id2label": {0: "sad", 1: "glad", 2: "mad"}, "label2id": {"sad": 0, "glad": 1, "mad": 2}}
    kinds = transformers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        saved(root / "bert", kinds.BertForSequenceClassification(bert(**names)), tokenizer())
        causal = kinds.GPT2ForSequenceClassification(gpt2(**names))
        saved(root / "gpt2-classifier", causal, tokenizer(pad=False))
        saved(root / "gpt2-bare", causal, tokenizer(pad=False, special=False))
        saved(root / "gpt2", kinds.GPT2LMHeadModel(gpt2()), tokenizer(pad=False))
        saved(root / "plain", kinds.GPT2LMHeadModel(gpt2()), tokenizer(pad=False, special=False))
        saved(root / "one", kinds.BertForSequenceClassification(bert(num_labels=1)), tokenizer())
        saved(root / "unnamed", kinds.BertForSequenceClassification(bert()), tokenizer())
        saved(root / "encoder", kinds.BertModel(bert()), tokenizer())
    return root


@pytest.mark.parametrize("kind", ["bert", "gpt2-classifier", "gpt2-bare"])
def test_a_classifier_answers_as_for_one_text_at_a_time(kind: str, folders: Path) -> None:
    target = from_folder(folders / kind)
    assert isinstance(target, Classifies) and target.labels == ("sad", "glad", "mad")
    records = [Record((text,)) for text in TEXTS]
    together = target.probabilities(records)
    alone = np.concatenate([target.probabilities([record]) for record in records])
    assert together == pytest.approx(alone, abs=1e-6)
    assert together.sum(axis=1) == pytest.approx(np.ones(len(TEXTS)))
    assert np.ptp(together, axis=0).min() > 1e-3  # texts are told apart at all
    assert target.probabilities([]).shape == (0, 3)


def test_classes_without_a_name_are_numbers(folders: Path) -> None:
    assert from_folder(folders / "unnamed").labels == ("0", "1")


def test_padding_with_a_wrong_token_would_be_seen(folders: Path) -> None:
    """The twin: without the attention mask, batches change the answers."""
    target = from_folder(folders / "bert")
    records = [Record((text,)) for text in TEXTS]
    right = target.probabilities(records)
    forward = target.model.forward
    target.model.forward = lambda **given: forward(
        **{**given, "attention_mask": torch.ones_like(given["attention_mask"])}
    )
    assert np.abs(target.probabilities(records) - right).max() > 1e-3


def test_pairs_are_read_as_pairs(folders: Path) -> None:
    target = from_folder(folders / "bert")
    pair, joined = target.probabilities([Record(("a dog", "the cat"))]), Record(("a dog the cat",))
    assert np.abs(pair - target.probabilities([joined])).max() > 1e-6


@pytest.mark.parametrize("kind", ["gpt2", "plain"])
def test_token_logs_by_hand(kind: str, folders: Path) -> None:
    target = from_folder(folders / kind)
    assert isinstance(target, Predicts) and isinstance(target, Generates)
    for text, logs in zip(TEXTS, target.token_logs(TEXTS), strict=True):
        ids = target.tokenizer(text)["input_ids"]
        assert len(logs.log) == len(logs.rank) == max(0, len(ids) - 1)
        if len(ids) < 2:
            continue
        with torch.no_grad():
            p = target.model(torch.tensor([ids])).logits[0, :-1].double().softmax(1).numpy()
        for at, token in enumerate(ids[1:]):
            assert logs.log[at] == pytest.approx(np.log(p[at, token]), abs=1e-5)
            mean = np.sum(p[at] * np.log(p[at]))
            spread = np.sqrt(np.sum(p[at] * np.log(p[at]) ** 2) - mean**2)
            assert logs.mean[at] == pytest.approx(mean, abs=1e-5)
            assert logs.deviation[at] == pytest.approx(spread, abs=1e-5)
            assert logs.rank[at] == np.sum(p[at] > p[at, token])
    assert target.token_logs([]) == []


def test_token_logs_do_not_depend_on_how_they_are_cut(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = from_folder(folders / "gpt2")
    whole = target.token_logs(TEXTS)
    monkeypatch.setattr("sourdine.attacks.causal._PIECE", 2)
    monkeypatch.setattr("sourdine.attacks.causal._TOKENS", 5)
    for one, other in zip(whole, target.token_logs(TEXTS), strict=True):
        assert one.log == pytest.approx(other.log, abs=1e-5) and (one.rank == other.rank).all()


def test_long_texts_are_cut(folders: Path) -> None:
    long = " ".join(["cat"] * 100)
    (logs,) = from_folder(folders / "gpt2").token_logs([long])
    assert len(logs.log) == 23
    (short,) = from_folder(folders / "gpt2", longest=10).token_logs([long])
    assert len(short.log) == 9
    assert from_folder(folders / "bert").probabilities([Record((long,))]).shape == (1, 3)


def test_writing(folders: Path) -> None:
    target = from_folder(folders / "gpt2")
    prompts = ["", "the red", "a dog ran", "the red"]
    asked = {"tokens": 8, "sampling": Sampling(top=5, temperature=2.0, decay=4), "seed": 3}
    written = target.generate(prompts, **asked)
    assert len(written) == 4 and written == target.generate(prompts, **asked)
    assert written != target.generate(prompts, **{**asked, "seed": 4})
    assert all(len(line.split()) <= 8 and "[" not in line for line in written)
    best = Sampling(top=1)
    (greedy,) = target.generate(["the red"], tokens=1, sampling=best, seed=0)
    with torch.no_grad():
        ids = target.tokenizer("the red", add_special_tokens=False)["input_ids"]
        token = int(target.model(torch.tensor([[2, *ids]])).logits[0, -1].argmax())
    assert greedy == target.tokenizer.decode([token], skip_special_tokens=True)
    for tokens in (8, 100):  # of a long prompt the end is read; no text is longer than the model
        (line,) = target.generate(["the " * 50], tokens=tokens, sampling=best, seed=0)
        assert len(line.split()) < 24


def test_a_prompt_begins_as_a_text_does() -> None:
    """A token too many before it would move every place by one."""
    ids = tokenizer(special=False)("the red")["input_ids"]

    def begun(own: Any, prompt: str) -> list[int]:
        return CausalModel(None, own, 24)._begun(prompt)

    assert begun(tokenizer(), "the red") == [2, *ids]
    assert begun(tokenizer(special=False), "the red") == ids
    assert begun(tokenizer(), "") == [2]
    by_bytes = transformers.ByT5Tokenizer(extra_ids=0)  # ends a text, and begins it with nothing
    assert begun(by_bytes, "ab") == [97 + 3, 98 + 3]
    assert begun(by_bytes, "") == [by_bytes.eos_token_id]


def test_a_temperature_falls_to_one_in_a_straight_line() -> None:
    falling, steady = Sampling(temperature=10.0, decay=4), Sampling(temperature=0.7)
    assert [_temperature(falling, step) for step in range(6)] == pytest.approx(
        [10, 7.75, 5.5, 3.25, 1, 1]
    )
    assert {_temperature(steady, step) for step in range(6)} == {0.7}


def test_features_do_not_depend_on_padding(folders: Path) -> None:
    records = [Record((text,)) for text in TEXTS]
    together = features(folders / "encoder", records)
    assert together.shape == (len(TEXTS), 16)
    alone = np.concatenate([features(folders / "encoder", [record]) for record in records])
    assert together == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt2-medium", "Nothing is downloaded here"),
        ("encoder", "is BertModel; an attack needs"),
        ("one", "does not choose one of several labels"),
        ("broken", "cannot be read"),
        ("empty", "cannot be loaded"),
        ("headless", "lacks 2 of its weights"),
    ],
)
def test_folders_that_are_no_target(name: str, message: str, folders: Path) -> None:
    for made, text in (("broken", "{"), ("empty", '{"architectures": ["GPT2LMHeadModel"]}')):
        (folders / made).mkdir(exist_ok=True)
        (folders / made / "config.json").write_text(text, encoding="utf-8")
    if name == "headless":
        saved(folders / name, transformers.BertModel(bert()), tokenizer())
        config = json.loads((folders / name / "config.json").read_text(encoding="utf-8"))
        config["architectures"] = ["BertForSequenceClassification"]
        (folders / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        from_folder(folders / name if name != "gpt2-medium" else name)


def test_scikit_learn_with_and_without_a_vectoriser() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.pipeline import make_pipeline

    texts, labels = ["good day", "bad day", "good", "bad"], [1, 0, 1, 0]
    count = CountVectorizer().fit(texts)
    model = linear.LogisticRegression().fit(count.transform(texts), labels)
    whole = Scikit(make_pipeline(count, model))
    parts = Scikit(model, count)
    records = [Record((text,)) for text in texts]
    assert isinstance(parts, Classifies) and parts.labels == ("0", "1")
    assert parts.probabilities(records) == pytest.approx(whole.probabilities(records))
    with pytest.raises(InputError, match="one text a record"):
        whole.probabilities([Record(("a", "b"))])
    with pytest.raises(InputError, match="has no probabilities"):
        Scikit(linear.RidgeClassifier())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([[0.5, 0.5]], r"shape \(1, 2\), but 2 records"),
        ([[0.5, 0.6], [0.5, 0.5]], "no probabilities"),
        ([[-0.5, 1.5], [0.5, 0.5]], "no probabilities"),
        ([[np.nan, 1.0], [0.5, 0.5]], "no probabilities"),
    ],
)
def test_a_function_is_checked(answer: list[list[float]], message: str) -> None:
    target = Function(lambda _: answer, ("no", "yes"))
    with pytest.raises(InputError, match=message):
        target.probabilities([Record(("a",)), Record(("b",))])
