"""Learn a divergence between word vectors that knows which of two words is the more general: dog < animal.

    ASKEW_DATA=folder python examples/entailment.py            # about a minute: GloVe vectors, nouns of WordNet
    python examples/entailment.py                              # seconds: without the files, a few words made up here
    python examples/entailment.py --pairs file.tsv             # also judged by word pairs of your own

A similarity is the same both ways and cannot tell. Here D(specific, general) becomes small, D(general, specific) large.
None of the words that are asked about is the specific word of a pair that is learned from.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import askew
from askew.data.taxonomy import Taxonomy
from askew.data.words import WordVectors, read_pairs
from askew.experiments.entailment import judge_pairs, word_model
from askew.experiments.entailment_task import load_lexicon, make_task
from askew.experiments.entailment_training import Plan, learn

ASKED = {"dog": "animal", "poodle": "dog", "violin": "instrument", "oak": "tree"}
# A taxonomy for those who do not have the files: each line is a word and those below it.
SMALL = """thing: animal plant instrument vehicle
animal: dog cat horse bird fish cow
dog: poodle terrier beagle hound
plant: tree flower herb
tree: oak pine birch willow
instrument: violin piano flute drum
vehicle: car truck bus train"""


def small_world(dim: int = 16) -> tuple[WordVectors, Taxonomy]:
    """Return these words; the vector of each is that of the word above it plus a step that is partly random."""
    random, above, points = np.random.default_rng(0), {}, {"thing": np.zeros(dim)}
    for upper, lower in (line.split(": ") for line in SMALL.splitlines()):
        for word in lower.split():
            above[word] = (upper,)
            points[word] = points[upper] + random.normal(loc=0.5, size=dim)
    vectors = np.stack(list(points.values())).astype(np.float32)
    return WordVectors(tuple(points), vectors), Taxonomy({word: (word,) for word in points}, above)


def main() -> None:
    """Train, ask and save."""
    parser = argparse.ArgumentParser(description="Learn which of two words is the more general.")
    parser.add_argument("--pairs", nargs="*", default=[], help="tables with the columns word1, word2, label or score")
    parser.add_argument("--out", default="entailment-model", help="folder for the model")
    options = parser.parse_args()
    try:
        lexicon = load_lexicon()
        vectors, taxonomy, held_out = lexicon.vectors, lexicon.taxonomy, lexicon.held_out()
        plan = Plan(epochs=1, learning_rate=1e-2)
    except FileNotFoundError as error:
        print(f"With a few made-up vectors, because of this: {error}\n")
        (vectors, taxonomy), held_out, plan = small_world(), set(), Plan(epochs=60, batch=16, learning_rate=1e-2)
    others = {path: read_pairs(path) for path in options.pairs}
    held_out = held_out.union(ASKED, *(pairs.first for pairs in others.values()))
    torch.manual_seed(0)
    model = word_model("nbd", vectors)
    learn(model, make_task(vectors, taxonomy, held_out), plan)
    points = torch.from_numpy(vectors.vectors)
    for word, upper in ASKED.items():
        x, y = points[vectors.rows([word, upper])]
        there, back = model(x, y).item(), model(y, x).item()
        general = upper if there < back else word
        print(f"{general} is more general: D({word}, {upper}) = {there:.2f}, D({upper}, {word}) = {back:.2f}")
        nearest = [vectors.words[row] for row in model.pairwise(x[None], points)[0].argsort()[:6]]
        print(f"    nearest generals of {word}: {', '.join(other for other in nearest if other != word)}")
    for path, pairs in others.items():
        print(path, {name: round(score, 3) for name, score in judge_pairs(model, vectors, pairs).items()})
    askew.save(model, options.out)
    print(f"The model is in {options.out!r}; askew.load reads it.")


if __name__ == "__main__":
    main()
