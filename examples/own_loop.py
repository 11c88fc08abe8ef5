"""Your PyTorch loop, with one line swapped: the matrix of distances comes from a learned divergence.

    python examples/own_loop.py              # 10 classes of handwritten digits, a small network, all triplets

The loop is an ordinary one: encoder, matrix of the batch, loss, step. Each variant is the same loop with another
`matrix_of`. What is printed is how well test digits rank the training digits (mean average precision). The network does
most of the work here, so expect small differences; that is also the reason to try it, since it costs one line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import askew

DIM = 8


def train(
    encoder: nn.Module,
    matrix_of: Callable[[Tensor, Tensor], Tensor],
    points: Tensor,
    labels: Tensor,
    steps: int,
    parameters: list[nn.Parameter],
) -> None:
    """Train an encoder, and whatever else has parameters, in place."""
    loss = askew.losses.AllTriplets(margin=1.0)
    optimizer = torch.optim.Adam([*encoder.parameters(), *parameters], lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randint(len(points), (128,), generator=generator)
        z = encoder(points[batch])
        matrix = matrix_of(z, z)  # the line: torch.cdist(z, z).square() became D.pairwise(z, z)
        optimizer.zero_grad()
        loss(matrix, labels[batch]).backward()
        optimizer.step()


def main() -> None:
    """Train the same network three times and compare."""
    parser = argparse.ArgumentParser(description="One line of a training loop swapped.")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(X.astype("float32") / 16, y, test_size=0.3, random_state=0, stratify=y)
    items, queries, labels, query_labels = (torch.from_numpy(part) for part in parts)

    for name in ("plain Euclidean", "mahalanobis", "nbd"):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, DIM))
        matrix_of: Callable[[Tensor, Tensor], Tensor]
        parameters: list[nn.Parameter] = []
        if name == "plain Euclidean":
            matrix_of = lambda a, b: torch.cdist(a, b).square()  # noqa: E731
        else:
            D = askew.make(name, DIM)
            with torch.no_grad():  # once, before training: the scales of input and output
                D.calibrate(encoder(items), encoder(items).flip(0))
            matrix_of, parameters = D.pairwise, list(D.parameters())
        train(encoder, matrix_of, items, labels, options.steps, parameters)
        with torch.no_grad():
            matrix = matrix_of(encoder(queries), encoder(items))
        precision = askew.metrics.mean_average_precision(matrix, query_labels, labels)
        print(f"{name:16} mean average precision {precision:.3f}")


if __name__ == "__main__":
    main()
