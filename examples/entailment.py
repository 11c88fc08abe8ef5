"""Which of two words is the more general? A distance that is the same both ways cannot say; a divergence can.

    ASKEW_DATA=folder python examples/entailment.py    # GloVe vectors, nouns of WordNet, judged by WBLESS
    python examples/entailment.py                      # without the files: a random tree of words

Every method gets the same encoder, pairs and steps, and learns D(specific, general) < D(general, specific). Each is
then asked about words that were never the specific word of a pair it learned from. "precision" is how well it tells
true pairs from others, reversed ones among them; "direction" is how often it knows which word of a true pair is the
more general, and is .500 for a coin. A quasimetric such as iqe is made for relations that pass on from word to word, as
this one does; drift is not, but its term of first order in the direction is what nbd lacks, and unlike iqe it is
searched by an inner product. The form of nbd is the one that did better on validation words in `askew-paper run
entailment`, which has more methods, more training and several seeds; the others are as they come, the steps are what
takes a minute, and one run is one run.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from askew_paper.data.taxonomy import Taxonomy, load_taxonomy, random_taxonomy
from askew_paper.data.words import WordVectors, load_pairs, load_vectors
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

import askew
from askew.divergences import Divergence, Reversed

ASKED = [("poodle", "dog"), ("dog", "animal"), ("violin", "instrument"), ("oak", "tree"), ("oak", "violin")]
DIM = 32

Pairs = list[tuple[str, str]]


def read_words() -> tuple[WordVectors, Taxonomy, Pairs, NDArray[np.bool_]]:
    """Return published words and the pairs of WBLESS, each with whether it holds."""
    vectors, taxonomy = load_vectors(), load_taxonomy("nouns")
    judged = load_pairs("wbless").within(vectors)
    return vectors, taxonomy, list(zip(judged.first, judged.second, strict=True)), judged.labels


def make_words() -> tuple[WordVectors, Taxonomy, Pairs, NDArray[np.bool_]]:
    """Return a random tree and pairs of a quarter of its leaves: true ones, as many reversed, as many random."""
    taxonomy, vectors = random_taxonomy()
    random = np.random.default_rng(0)
    leaves = [word for word in vectors.words if word.count("-") == 3]
    chosen = {leaves[row] for row in random.permutation(len(leaves))[: len(leaves) // 4]}
    true = [pair for pair in taxonomy.pairs(vectors) if pair[0] in chosen]
    drawn = [(low, leaves[random.integers(len(leaves))]) for low, _ in true]
    pairs = true + [(high, low) for low, high in true] + drawn
    return vectors, taxonomy, pairs, np.arange(len(pairs)) < len(true)


def methods(size: int) -> dict[str, Divergence]:
    """Return untrained models, all with the same encoder."""

    def behind_encoder(name: str) -> Divergence:
        return askew.make(name, DIM, encoder=askew.encoders.MLP(size, DIM, (128,)))

    names = ("mahalanobis", "iqe", "nbd", "drift")
    # nbd takes the general word first, where D is convex.
    return {name: Reversed(behind_encoder(name)) if name == "nbd" else behind_encoder(name) for name in names}


def learn(model: Divergence, points: Tensor, pairs: Tensor, steps: int) -> None:
    """Train a model so that D is below 1 for pairs that hold and above 1 for reversed and for random ones."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        low, high = points[batch].unbind(1)
        other = points[torch.randint(len(points), (len(batch),))]
        D = model(torch.cat([low, high, low]), torch.cat([high, low, other]))
        signs = torch.tensor([1.0, -1.0, -1.0]).repeat_interleave(len(batch))
        return softplus(4 * signs * (D - 1)).mean()

    rows = torch.randint(len(points), (2, 2000))
    model.calibrate(*points[rows])
    askew.fit(model, (pairs,), loss, steps=steps, batch_size=256, learning_rate=3e-3, calibrate=False, seed=0)


def judge(name: str, there: Tensor, back: Tensor, holds: NDArray[np.bool_]) -> None:
    """Print how well D(first, second) and D(second, first) tell the pairs that hold."""
    precision = askew.metrics.mean_average_precision(there[None].numpy(), np.ones(1, dtype=np.bool_), holds)
    direction = ((there < back) + 0.5 * (there == back))[torch.from_numpy(holds)].mean()
    print(f"{name:13}{precision:9.3f}{direction:11.3f}")


def main() -> None:
    """Train, judge, ask."""
    parser = argparse.ArgumentParser(description="Learn which of two words is the more general.")
    parser.add_argument("--steps", type=int, default=400, help="of training, for each method")
    options = parser.parse_args()
    try:
        vectors, taxonomy, judged, holds = read_words()
        asked = [pair for pair in ASKED if set(pair) <= set(vectors.words)]
    except FileNotFoundError as error:
        print(f"A random tree instead of real words. {error}\n")
        vectors, taxonomy, judged, holds = make_words()
        asked = [pair for pair, true in zip(judged, holds, strict=True) if true][:3]
    held_out = {low for low, _ in [*judged, *asked]}
    known = [pair for pair in taxonomy.pairs(vectors, steps=4) if pair[0] not in held_out]
    points = torch.from_numpy(vectors.vectors)
    first, second = (points[vectors.rows(words)] for words in zip(*judged, strict=True))
    print(f"{len(known)} pairs to learn from, {len(judged)} to be judged by, {holds.sum()} of which hold\n")
    print(f"{'':13}precision  direction")
    similar = 1 - (normalize(first) * normalize(second)).sum(1)
    judge("cosine", similar, similar, holds)
    torch.manual_seed(0)
    models = methods(points.shape[1])
    for name, model in models.items():
        learn(
            model,
            points,
            torch.from_numpy(vectors.rows(word for pair in known for word in pair)).view(-1, 2),
            options.steps,
        )
        with torch.no_grad():
            judge(name, model(first, second), model(second, first), holds)
    print("\ndrift, asked: D of the pair, and the other way")
    for low, high in asked:
        x, y = points[vectors.rows([low, high])]
        with torch.no_grad():
            there, back = models["drift"](x, y).item(), models["drift"](y, x).item()
        print(f"  D({low}, {high}) = {there:.2f}   D({high}, {low}) = {back:.2f}")


if __name__ == "__main__":
    main()
