"""`sourdine encode` and `sourdine attack encoding`, as a newcomer uses them, with bad input too."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourdine.cli import main

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("read_once")

WORDS = ("rain", "sun", "wind", "good", "bad", "day", "night", "house", "tree", "road", "cup", "song")


def table(path: Path, count: int, seed: int) -> Path:
    chance = np.random.default_rng(seed)
    rows = ["note,kind"]
    rows += [
        f"{' '.join(chance.choice(WORDS, 5))} {seed}-{at},{'yes' if at % 2 else 'no'}"
        for at in range(count)
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("encode")
    for name, count, seed in (("private", 60, 1), ("public", 150, 2), ("others", 920, 3)):
        table(root / f"{name}.csv", count, seed)
    return root


def run(root: Path, *more: str, data: str = "private.csv") -> int:
    return main(
        [
            *("encode", str(root / data), "--text", "note", "--label", "kind", "--labels", "no,yes"),
            *("--model", "bytes", *more),
        ]
    )


def private(root: Path, out: Path, *more: str) -> int:
    public = str(root / "public.csv")
    return run(
        root,
        "--epsilon",
        "8",
        "--delta",
        "1e-3",
        "--public",
        public,
        "--dimension",
        "8",
        "--out",
        str(out),
        *more,
    )


def test_encodings_are_sealed_and_verified(root: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert private(root, out, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["private"] and 7 < said["epsilon"] <= 8
    assert said["encodings"] == 60 and said["dimension"] == 8
    assert main(["verify", str(out)]) == 0
    assert "these encodings" in (out / "report.html").read_text()
    assert "this model" not in (out / "report.html").read_text()
    capsys.readouterr()
    assert private(root, out) == 2
    assert "there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [
        ("--mode", "central", "--mixed", "3"),
        ("--mode", "secret", "--label-privacy", "inside", "--adjacency", "zero-out"),
        ("--noise", "laplace, radial", "--label-privacy", "public"),
        ("--map", "autoencoder"),
        ("--map", "random", "--clip", "0.5"),
    ],
)
def test_other_ways(root: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    assert private(root, tmp_path / "out", *more) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_public_labels_are_said_not_to_be_covered(root: Path, tmp_path: Path) -> None:
    assert private(root, tmp_path / "out", "--label-privacy", "public") == 0
    document = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert document["not_covered"][0].startswith("Labels")
    assert any(access["cost"] == "NOT ACCOUNTED" for access in document["accesses"])


@pytest.mark.parametrize(
    ("mode", "more"), [("texthide", ()), ("paper", ("--epsilon", "1", "--delta", "1e-5"))]
)
def test_what_is_not_private_says_so(
    root: Path, tmp_path: Path, capsys: Any, mode: str, more: tuple[str, ...]
) -> None:
    assert run(root, "--mode", mode, "--out", str(tmp_path / "out"), *more) == 0
    assert "WITHOUT a guarantee" in capsys.readouterr().out
    assert (tmp_path / "out" / "README.md").read_text().startswith("# NOT PRIVATE")
    assert main(["verify", str(tmp_path / "out")]) == 2


def attack(root: Path, folder: Path, *more: str) -> int:
    return main(
        [
            *("attack", "encoding", str(folder), "--text", "note", "--model", "bytes"),
            *("--candidates", str(root / "others.csv"), "--public", str(root / "public.csv")),
            *("--truth", str(root / "private.csv"), *more),
        ]
    )


def test_texthide_is_attacked(root: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert run(root, "--mode", "texthide", "--mixed", "2", "--outputs", "1500", "--out", str(out)) == 0
    capsys.readouterr()
    assert attack(root, out, "--json", "--out", str(tmp_path / "result.json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["sources"] == 60 and said["masks"] == 16 and said["mixed"] == 2
    assert said["chance"] == pytest.approx(1 / 921)
    assert 0 <= said["matched"] <= 1 and len(said["closest"]) == 5
    assert json.loads((tmp_path / "result.json").read_text()) == said
    assert attack(root, out, "--out", str(tmp_path / "result.json")) == 2
    assert "there already" in capsys.readouterr().err


def test_mixtures_without_masks_show_who_is_there(root: Path, tmp_path: Path, capsys: Any) -> None:
    out, paper = tmp_path / "out", ("--mode", "paper", "--epsilon", "2000", "--delta", "1e-5")
    assert run(root, *paper, "--mixed", "2", "--outputs", "1500", "--out", str(out)) == 0
    capsys.readouterr()
    assert attack(root, out) == 0
    assert "present: " in capsys.readouterr().out


def test_the_repair_is_attacked(root: Path, tmp_path: Path, capsys: Any) -> None:
    assert private(root, tmp_path / "out") == 0
    capsys.readouterr()
    assert attack(root, tmp_path / "out", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["matched"] < 0.2  # in eight dimensions some fit by chance


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--epsilon", "8"), "--public"),
        ((), "give --epsilon"),
        (("--mode", "texthide", "--epsilon", "1"), "no epsilon"),
        (("--mode", "best", "--epsilon", "1"), "local, central"),
    ],
)
def test_bad_input(root: Path, tmp_path: Path, capsys: Any, more: tuple[str, ...], said: str) -> None:
    assert run(root, "--out", str(tmp_path / "out"), *more) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--map", "best"), "pca, random"),
        (("--map", "none"), "leave --dimension out"),
        (("--noise", "best"), "gaussian"),
        (("--label-privacy", "best"), "randomized, inside"),
        (("--adjacency", "add-remove"), "add-remove"),
        (("--delta", "0.5"), "delta"),
        (("--mode", "secret"), "zero-out"),
        (("--clip", "0"), "clip"),
    ],
)
def test_bad_settings(
    root: Path, tmp_path: Path, capsys: Any, more: tuple[str, ...], said: str
) -> None:
    assert private(root, tmp_path / "out", *more) == 2
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_copies_stop_a_script_and_are_left_out(
    root: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sourdine.encoding import InstanceEncoder

    seen: list[list[str]] = []
    real = InstanceEncoder.encode_features
    monkeypatch.setattr(
        InstanceEncoder,
        "encode_features",
        lambda self, rows, labels: seen.append(list(labels)) or real(self, rows, labels),
    )
    mixed, out = tmp_path / "mixed.csv", tmp_path / "out"
    copied = (root / "private.csv").read_text().split("\n", 2)[1]
    mixed.write_text((root / "public.csv").read_text() + copied + "\n")
    assert private(root, out, "--public", str(mixed)) == 2
    said = capsys.readouterr().err
    assert "1 of 60 private records have the same words as a public one" in said
    assert "--leave-out-copies" in said and not out.exists() and not seen
    assert private(root, out, "--public", str(mixed), "--leave-out-copies") == 0
    assert [at for at, label in enumerate(seen[0]) if not label] == [0] and len(seen[0]) == 60
    # A public label that were missing would show whose text it is.
    shown = ("--label-privacy", "public", "--out", str(tmp_path / "shown"))
    assert private(root, out, "--public", str(mixed), "--leave-out-copies", *shown) == 0
    assert all(seen[1])


def test_an_encoder_that_learnt_from_private_text_is_refused(
    root: Path, tmp_path: Path, capsys: Any
) -> None:
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    (run_folder / "certificate.json").write_text("{}")
    assert private(root, tmp_path / "out", "--model", str(run_folder)) == 2
    assert "folder of a run" in capsys.readouterr().err


def test_a_full_disk_is_said_and_nothing_lies_about(
    root: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    from sourdine.encoding import encodings

    def full(arrays: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of it")
        raise SafetensorError("no space left")

    monkeypatch.setattr(encodings, "save_file", full)
    assert private(root, tmp_path / "out") == 1
    assert "What was charged stays charged" in capsys.readouterr().err
    assert not (tmp_path / "out" / "encodings.safetensors").exists()
