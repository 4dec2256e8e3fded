"""`sourdine attack`: a folder that sourdine did not train and two tables, in one command."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourdine.cli import main

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = [f"w{at}" for at in range(150)]
COUNT = 120
LABELS = ("no", "yes")


def tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import BertProcessing

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    words = Tokenizer(WordLevel({word: at for at, word in enumerate(names)}, "[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **named)


def table(path: Path, seed: int, first: int = 0) -> tuple[list[str], list[int]]:
    """Random words with random labels: whatever is known of them was learnt by heart."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(f"w{at}" for at in rng.integers(first, 150, 8)) for _ in range(COUNT)]
    labels = rng.integers(0, 2, COUNT).tolist()
    rows = [
        f"{text},{LABELS[label]},{seed}-{at // 3}"
        for at, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    path.write_text("\n".join(["note,kind,author", *rows]) + "\n", encoding="utf-8")
    return texts, labels


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that learnt its members by heart, a language model that learnt nothing, tables."""
    root = tmp_path_factory.mktemp("attack")
    texts, labels = table(root / "in.csv", 1)
    table(root / "out.csv", 2)
    table(root / "kind.csv", 3, first=40)
    words = tokenizer()
    sizes = {"vocab_size": len(WORDS) + 4, "max_position_embeddings": 16}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        config = transformers.BertConfig(
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            id2label=dict(enumerate(LABELS)),
            label2id={label: at for at, label in enumerate(LABELS)},
            initializer_range=0.3,
            **sizes,
        )
        model = transformers.BertForSequenceClassification(config)
        model.bert.save_pretrained(root / "base")
        batch = words(texts, padding=True, return_tensors="pt")
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(40):
            optimizer.zero_grad()
            model(**batch, labels=torch.tensor(labels)).loss.backward()
            optimizer.step()
        model.save_pretrained(root / "classifier")
        language = transformers.GPT2Config(
            vocab_size=len(WORDS) + 4, n_embd=16, n_layer=1, n_head=2, n_positions=16
        )
        transformers.GPT2LMHeadModel(language).save_pretrained(root / "language")
    for name in ("base", "classifier", "language"):
        words.save_pretrained(root / name)
    return root


def asked(root: Path, verb: str, model: str, *more: str, others: str = "out.csv") -> list[str]:
    tables = ["--members", str(root / "in.csv"), "--others", str(root / others)]
    return ["attack", verb, str(root / model), *tables, "--text", "note", *more]


def test_a_folder_and_two_tables(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chance passes an AUC of 0.68 with probability below 1e-6: its deviation is 0.037."""
    out = tmp_path / "found"
    assert main([*asked(root, "membership", "classifier", "--label", "kind"), "--out", str(out)]) == 0
    said, err = capsys.readouterr()
    assert not err and "The target gives its members away" in said and "blind baseline" in said
    assert "TPR at FPR 0.01: not given, as 120 others" in said and "Blind baseline: AUC" in said
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert result["verdict"] == "told apart" and result["attacks"]["loss"]["auc"] > 0.68
    for name in ("roc.png", "densities.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    first = (root / "in.csv").read_text(encoding="utf-8").splitlines()[1].split(",")[0]
    assert first not in said + json.dumps(result)


def test_shadows_and_a_reference(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--label", "kind", "--shadows", "4", "--base", str(root / "base"))
    more += ("--reference", str(root / "classifier"), "--json")
    assert main(asked(root, "membership", "classifier", *more)) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"loss", "reference", "LiRA online", "RMIA offline", "shadow classifier"} <= set(
        found["attacks"]
    )
    assert found["attacks"]["reference"]["auc"] == 0.5  # compared with itself
    assert found["members"] == COUNT


def test_a_language_model(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(root, "membership", "language", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["attacks"]) == ["loss", "zlib", "Min-20%", "Min-20%++"]
    assert found["verdict"] == "not told apart" and found["unit"] == "record"


def test_a_language_model_knows_no_labels(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(root, "membership", "language", "--label", "kind")) == 2
    assert "leave --label out" in capsys.readouterr().err


def test_persons(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(root, "user", "language", "--user", "author", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unit"] == "user" and found["members"] == COUNT // 3
    assert main(asked(root, "user", "classifier", "--user", "author", "--label", "kind")) == 0
    assert "mean loss" in capsys.readouterr().out


def test_members_of_another_kind(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = asked(root, "membership", "classifier", "--label", "kind", others="kind.csv")
    assert main(given) == 0
    assert "Nothing can be said about the target" in capsys.readouterr().out


def test_labels_that_the_tables_name_otherwise(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The wrong way round, the target would look as if it had learnt the opposite."""
    more = ("--label", "kind", "--json", "--labels")
    assert main(asked(root, "membership", "classifier", *more, "no,yes")) == 0
    assert json.loads(capsys.readouterr().out)["attacks"]["loss"]["auc"] > 0.6
    assert main(asked(root, "membership", "classifier", *more, "yes,no")) == 2
    assert "in the order no, yes" in capsys.readouterr().err


def test_what_a_newcomer_gets_wrong(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of these ended in a false all-clear, a stack trace, or after the work."""
    given = asked(root, "membership", "classifier", "--label", "kind")
    same = list(given)
    same[same.index("--others") + 1] = same[same.index("--members") + 1]
    assert main(same) == 2 and "members too" in capsys.readouterr().err
    assert main([*given, "--device", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main([*given, "--out", str(tmp_path / "file")]) == 2
    assert "name another" in capsys.readouterr().err
    bare = tmp_path / "bare"
    shutil.copytree(root / "classifier", bare)
    for path in bare.glob("*token*"):
        path.unlink()
    given[2] = str(bare)
    assert main(given) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_model_of_a_run_folder(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sourdine.text.model import TextModel
    from sourdine.text.models import Classifier, load_encoder
    from sourdine.text.tasks import Classify

    encoder, words, pooling = load_encoder(str(root / "base"))
    TextModel(Classifier(encoder, 2, pooling, 1.0), words, Classify(LABELS), 16).save(tmp_path)
    given = asked(root, "membership", "base", "--label", "kind", "--max-length", "12", "--json")
    given[2] = str(tmp_path)
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "not told apart"


def test_a_config_file(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[attack.membership]\ntext = "note"\nlabel = "kind"\n', encoding="utf-8")
    tables = ["--members", str(root / "in.csv"), "--others", str(root / "out.csv")]
    given = ["attack", "membership", str(root / "classifier"), *tables, "--config", str(path), "--json"]
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["best"] == "loss"


@pytest.mark.parametrize(
    ("verb", "model", "more", "said"),
    [
        ("membership", "nowhere", [], "Nothing is downloaded here"),
        ("membership", "base", [], "is BertModel"),
        ("membership", "classifier", [], "kind"),
        ("membership", "classifier", ["--label", "author"], "no label that the target"),
        ("membership", "classifier", ["--label", "kind", "--labels", "a"], "names 1 classes"),
        (
            "membership",
            "classifier",
            ["--label", "kind", "--labels", "a,b"],
            "no label that the target",
        ),
        ("membership", "classifier", ["--label", "kind", "--shadows", "4"], "--base"),
        ("membership", "classifier", ["--label", "kind", "--shadows", "3", "--base", "BASE"], "even"),
        ("membership", "language", ["--shadows", "4", "--base", "BASE"], "for classifiers"),
        ("membership", "classifier", ["--label", "kind", "--reference", "LM"], "reference does not"),
        ("membership", "language", ["--confidence", "2"], "confidence is 2"),
        ("user", "language", [], "give --user"),
    ],
)
def test_what_cannot_be(
    verb: str,
    model: str,
    more: list[str],
    said: str,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = {"BASE": str(root / "base"), "LM": str(root / "language")}
    assert main(asked(root, verb, model, *(known.get(word, word) for word in more))) == 2
    out, err = capsys.readouterr()
    assert not out and said in err and err.count("\n") == 1


def test_tables_are_needed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "membership", str(root / "language")]) == 2
    assert "--members" in capsys.readouterr().err
