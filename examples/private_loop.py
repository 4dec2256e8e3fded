"""An ordinary PyTorch loop, made private by changing three lines.

    python examples/private_loop.py

The lines that changed end in a number; what stood there before is beside them. What `engine.step` does
is in the docstring of sourdine/sgd/engine.py; the data are random bags of words of two kinds.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sourdine as sd


def reviews(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """So many texts of 20 word numbers, and whether each was kind; kind ones like even words."""
    kind = torch.randint(0, 2, (count,))
    words = 2 * torch.randint(0, 50, (count, 20))
    odd = torch.rand(count, 20) < torch.where(kind == 1, 0.35, 0.65)[:, None]
    return list(zip(words + odd, kind, strict=True))


class Classifier(nn.Module):
    """Averaged embeddings and one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(texts).mean(1))


def losses(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    texts, kind = batch
    return cross_entropy(model(texts), kind, reduction="none")  # 1: was the mean over the batch


def main(steps: int = 60) -> float:
    dataset, test = reviews(2000), reviews(1000)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    engine = sd.Engine(
        model, optimizer, dataset, sd.Budget(3, 1e-6), loss=losses, lot_size=200, steps=steps
    )
    for lot in engine.lots():  # 2: was `for batch in DataLoader(dataset, 200, shuffle=True):`
        engine.step(lot)  # 3: was zero_grad(), losses(model, batch).backward(), optimizer.step()

    texts, kind = (torch.stack(column) for column in zip(*test, strict=True))
    right = float((model(texts).argmax(1) == kind).float().mean())
    print(f"test accuracy {right:.1%} at epsilon {engine.epsilon():.3f}, delta 1e-06 per example,")
    print(f"with noise {engine.noise_multiplier:.2f} times the clip in each of {engine.done} steps")
    return right


if __name__ == "__main__":
    main()
