"""The experiment on entailment between words: what is held out, how it is judged, and a run at toy size."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from askew_paper.data.taxonomy import Taxonomy, random_taxonomy
from askew_paper.data.words import WordPairs, WordVectors
from askew_paper.experiment import Cell, Outcome
from askew_paper.experiments.entailment import (
    ENTAILMENT,
    LEXICAL,
    METHODS,
    average_precision,
    divergences,
    judge_pairs,
    retrieval,
    run,
    threshold_accuracy,
    validate,
    word_model,
)
from askew_paper.experiments.entailment_task import Lexicon, Task, load_lexicon, make_task, pair_rows, random_lexicon
from askew_paper.experiments.entailment_training import Cosine, EntailmentLoss, OrderEmbedding, learn_entailment
from askew_paper.experiments.training import Plan
from askew_paper.runner import compute
from torch import nn

from askew.divergences import Divergence, Embedded, NeuralBregman, Reversed

published = pytest.mark.skipif("ASKEW_DATA" not in os.environ, reason="ASKEW_DATA does not name a folder of data")

TOY = {cell.method: cell for cell in ENTAILMENT.checked_cells("toy")}


def prepared(lexicon: Lexicon) -> Task:
    return make_task(lexicon.vectors, lexicon.taxonomy, lexicon.held_out(), lexicon.hyperlex)


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return random_lexicon()


@pytest.fixture(scope="module")
def task(lexicon: Lexicon) -> Task:
    return prepared(lexicon)


# ---------------------------------------------------------------------- what is held out


def check_nothing_leaks(lexicon: Lexicon, task: Task) -> None:
    """Raise unless no word that a test asks about is the more specific word of anything that is learned from."""
    words = lexicon.vectors.words
    tested = {*lexicon.bless.first, *lexicon.wbless.first, *lexicon.hyperlex.where("fold", "test").first}
    learned = {words[row] for row in task.train[:, 0]}
    assert tested
    assert not tested & learned
    assert not set(lexicon.queries()) & learned
    validated = {words[row] for row in task.validation[:, 0]}
    assert validated
    assert not validated & (learned | tested)
    rows = zip(lexicon.hyperlex.first, lexicon.hyperlex.second, lexicon.hyperlex.columns["label"], strict=True)
    kinds = {(first, second): kind for first, second, kind in rows}
    graded = [(words[a], words[b]) for a, b in task.graded]
    assert graded
    for first, second in graded:
        assert first not in tested
        assert not (kinds[first, second].startswith("r-hyp") and second in tested)
    assert set(task.graded_validation.columns["fold"]) <= {"train", "val"}
    test = lexicon.hyperlex.where("fold", "test")
    assert not set(graded) & set(zip(test.first, test.second, strict=True))


def test_no_tested_word_is_learned_as_a_hyponym(lexicon: Lexicon, task: Task) -> None:
    check_nothing_leaks(lexicon, task)


def test_leaks_would_be_found(lexicon: Lexicon) -> None:
    leaking = make_task(lexicon.vectors, lexicon.taxonomy, (), lexicon.hyperlex)
    with pytest.raises(AssertionError):
        check_nothing_leaks(lexicon, leaking)


@published
def test_no_tested_word_is_learned_as_a_hyponym_of_wordnet() -> None:
    lexicon = load_lexicon()
    task = prepared(lexicon)
    check_nothing_leaks(lexicon, task)
    assert len(task.train) > 140_000
    assert len(task.graded) > 1000
    assert task.holds(*pair_rows(lexicon.vectors, [("dog", "animal"), ("animal", "dog")]).T).tolist() == [True, False]


@published
def test_no_word_of_the_lexical_test_is_seen() -> None:
    lexicon = load_lexicon(lexical=True)
    task, test = prepared(lexicon), lexicon.hyperlex.where("fold", "test")
    words = set(pair_rows(lexicon.vectors, zip(test.first, test.second, strict=True)).ravel())
    assert (len(test), len(words), len(task.graded), len(task.graded_validation)) == (269, 360, 1132, 85)
    negatives = task.sibling(task.train[:, 0], np.random.default_rng(0).random(len(task.train)))
    assert len(task.train) > 140_000
    assert not words & {*task.train.ravel(), *negatives, *task.validation.ravel(), *task.graded.ravel()}
    assert 0.8 < task.degrees.max() <= 1


def test_training_pairs_hold_and_siblings_do_not(lexicon: Lexicon, task: Task) -> None:
    pairs = lexicon.taxonomy.pairs(lexicon.vectors, steps=4)
    words = lexicon.vectors.words
    assert all((words[a], words[b]) in pairs for a, b in task.train)
    assert task.holds(*task.train.T).all()
    first = task.train[:, 0]
    siblings = task.sibling(first, np.random.default_rng(0).random(len(first)))
    parents = [lexicon.taxonomy.above.get(words[row]) for row in first]
    assert [lexicon.taxonomy.above.get(words[row]) for row in siblings] == parents
    assert (siblings != first).all()
    assert not task.holds(first, siblings).any()


def test_a_word_without_siblings_stands_for_itself() -> None:
    vectors = WordVectors(("dog", "animal"), np.eye(2, dtype=np.float32))
    tree = Taxonomy({"dog": ("dog",), "animal": ("animal",)}, {"dog": ("animal",)})
    task = make_task(vectors, tree, held_out=())
    assert task.sibling(np.array([0, 1]), np.array([0.99, 0.0])).tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"taxonomy must be one with pairs of words that are not held out\. Got none"):
        make_task(vectors, tree, held_out={"dog"})


# ---------------------------------------------------------------------- divergences


def test_order_embedding_and_cosine_are_divergences() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, z = torch.randn(3, 50, 6, generator=generator)
    for divergence in (OrderEmbedding(6), Cosine(6)):
        assert (divergence(x, y) > 0).all()
        assert (divergence(x, x) == 0).all()
        torch.testing.assert_close(divergence.pairwise(x, y).diagonal(), divergence(x, y))
    torch.testing.assert_close(Cosine(6)(x, y), 1 - torch.cosine_similarity(x, y))
    assert torch.equal(Cosine(6)(x, y), Cosine(6)(y, x))
    order = OrderEmbedding(6)
    assert not torch.allclose(order(x, y), order(y, x))
    assert (order(x, z).sqrt() <= order(x, y).sqrt() + order(y, z).sqrt() + 1e-6).all()


# ---------------------------------------------------------------------- judging


def plane() -> WordVectors:
    words = ("dog", "cat", "animal", "rock")
    return WordVectors(words, np.array([[2, 1], [1, 2], [1, 1], [-3, 0]], dtype=np.float32))


def test_scores_of_pairs_by_hand() -> None:
    first, second = ("dog", "cat", "animal", "dog", "dog"), ("animal", "animal", "dog", "cat", "unknown")
    pairs = WordPairs(first, second, np.array([True, True, False, False, True]), np.array([10.0, 9, 1, 0, 5]))
    found = judge_pairs(OrderEmbedding(2), plane(), pairs)
    assert found["direction"] == 1
    assert found["average precision"] == 1
    # Divergences 0, 0, 1, 1 against 10, 9, 1, 0: each pair of ties costs.
    assert found["spearman"] == pytest.approx(4 / np.sqrt(20))
    symmetric = judge_pairs(Cosine(2), plane(), pairs)
    assert symmetric["direction"] == 0.5
    with pytest.raises(ValueError, match=r"pairs must be of words that have vectors, at least one\. Got 1 pairs"):
        judge_pairs(Cosine(2), plane(), WordPairs(("here",), ("there",)))


def test_average_precision_by_hand_and_with_ties() -> None:
    holds = np.array([True, False, True])
    assert average_precision(np.array([0.1, 0.2, 0.3]), holds) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.array([0.3, 0.2, 0.1]), holds) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.zeros(2), np.array([True, False])) == pytest.approx(0.75)


def test_accuracy_of_thresholds() -> None:
    random = np.random.default_rng(0)
    values, holds = random.random(1000), np.arange(1000) < 500
    assert 0.4 < threshold_accuracy(values, holds) < 0.6
    # The threshold is the largest of about 10 true values, below which 10/11 of the others are.
    assert threshold_accuracy(values + 2 * ~holds, holds) == pytest.approx(1 - 0.5 / 11, abs=0.02)
    # A threshold takes the smaller values as true, so the opposite order is worse than guessing.
    assert threshold_accuracy(values - 2 * ~holds, holds) < 0.5 + 1e-9


def test_retrieval_looks_for_all_words_above(lexicon: Lexicon) -> None:
    class Steps(Divergence):
        """The true number of steps, found by the vectors, which are different."""

        def compute(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            steps = lexicon.taxonomy.pairs(lexicon.vectors)
            words = {
                tuple(row.tolist()): word
                for word, row in zip(lexicon.vectors.words, lexicon.vectors.vectors, strict=True)
            }
            pairs = zip(x.tolist(), y.tolist(), strict=True)
            return torch.tensor([float(steps.get((words[tuple(a)], words[tuple(b)]), 99)) for a, b in pairs])

    assert retrieval(Steps(16), lexicon.vectors, lexicon) == 1
    assert 0 < retrieval(Cosine(16), lexicon.vectors, lexicon) < 1
    assert lexicon.queries()[:2] == ["w0-0", "w0-0-0-0"]


def test_symmetric_methods_cannot_tell_the_direction(task: Task) -> None:
    for method in ("cosine", "mahalanobis"):
        assert validate(word_model(method, task.vectors), task)["direction"] == 0.5


# ---------------------------------------------------------------------- training


def small(task: Task, method: str = "nbd") -> Embedded:
    torch.manual_seed(0)
    return word_model(method, task.vectors, dim=8, widths=(32,))


def test_loss_counts_no_pair_that_holds_as_a_negative(task: Task) -> None:
    others = {"random_weight": 0.0, "sibling_weight": 0.0, "graded_weight": 0.0}
    pairs = torch.from_numpy(task.train[:20])
    model = small(task)
    # A task in which the reversed pairs hold too.
    loop = np.concatenate([task.known, pairs.numpy() @ [1, len(task.vectors)]])
    both = replace(task, known=np.unique(loop))

    def loss(known: Task, weight: float) -> float:
        torch.manual_seed(0)
        return float(EntailmentLoss(known, reversed_weight=weight, **others)(model, pairs).detach())

    assert loss(task, 1.0) > loss(task, 0.0)
    assert loss(both, 1.0) == loss(both, 0.0)


def test_graded_pairs_and_noise_take_part(task: Task) -> None:
    pairs = torch.from_numpy(task.train[:20])
    model = small(task)

    def loss(**weights: float) -> float:
        torch.manual_seed(0)
        return float(EntailmentLoss(task, **weights)(model, pairs).detach())  # type: ignore[arg-type]

    assert loss() != loss(graded_weight=0) != loss(noise=0.5)
    assert loss() == loss()


def test_each_side_of_a_pair_has_its_encoder(task: Task) -> None:
    pairs = torch.from_numpy(task.train[:20])
    others = {"random_weight": 0.0, "reversed_weight": 0.0, "sibling_weight": 0.0, "graded_weight": 0.0}
    model, loss = small(task, "two-sided"), EntailmentLoss(task, **others)
    values = model(*(loss.points[side] for side in pairs.T))
    expected = nn.functional.softplus(loss.log_scale.exp() * values - loss.threshold).mean()
    torch.testing.assert_close(loss(model, pairs), expected)
    # With the other kinds of pairs, both encoders get gradients from all of them.
    EntailmentLoss(task)(model, pairs).backward()
    assert model.second is not None
    assert all(weights.grad is not None for weights in (*model.encoder.parameters(), *model.second.parameters()))


@pytest.mark.parametrize(("method", "least"), [("order", 0.85), ("nbd", 0.85), ("drift", 0.85), ("two-sided", 0.85)])
def test_direction_of_unseen_words_is_learned(method: str, least: float) -> None:
    tree, vectors = random_taxonomy(depth=4, branches=3)
    task = make_task(vectors, tree, held_out=(), validation=0.2)
    model = small(task, method)
    history = learn_entailment(model, EntailmentLoss(task, random=8), Plan(15, 64, (2e-2,)), seed=0)
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert validate(model, task)["direction"] > least


def test_same_seed_same_weights(task: Task) -> None:
    found = []
    for seed in (0, 0, 1):
        model = small(task)
        learn_entailment(model, EntailmentLoss(task), Plan(1, 128, (3e-3,)), seed)
        found.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


# ---------------------------------------------------------------------- the experiment


def outcome(cell: Cell) -> Outcome:
    found = compute(run, cell)
    assert isinstance(found, Outcome), found
    return found


@pytest.mark.parametrize("method", METHODS)
def test_smoke(method: str) -> None:
    found = outcome(TOY[method])
    assert set(found.scores) == {score.name for score in ENTAILMENT.scores}
    assert all(-1 <= value <= 1 for value in found.scores.values())
    assert set(found.chosen["validation"]) == {"average precision", "direction", "spearman"}


def test_rate_is_chosen_by_validation_words() -> None:
    cell = TOY["order"]
    several = replace(cell, options=tuple((k, (1e-6, 1e-2) if k == "learning_rates" else v) for k, v in cell.options))
    found = outcome(several)
    assert found.chosen["learning rate"] == 1e-2
    single = replace(cell, options=tuple((k, (1e-2,) if k == "learning_rates" else v) for k, v in cell.options))
    assert dict(outcome(single).scores) == dict(found.scores)


def test_all_methods_have_the_same_encoder_negatives_and_epochs() -> None:
    for scale in ("toy", "quick", "medium", "paper"):
        cells = ENTAILMENT.checked_cells(scale)
        settings = ["random tree"] if scale == "toy" else ["WordNet", LEXICAL]
        planned = [(setting, method) for setting in settings for method in METHODS]
        assert [(cell.setting, cell.method) for cell in cells if cell.seed == 0] == planned
        own = ("learning_rates", "swapped")
        plans = {tuple(pair for pair in cell.options if pair[0] not in own) for cell in cells if cell.options}
        assert len(plans) == 1
    assert ENTAILMENT.seeds == {"toy": 1, "quick": 1, "medium": 1, "paper": 5}


def test_models_take_word_vectors_as_they_are() -> None:
    vectors = plane()
    model = word_model("nbd", vectors, dim=3, widths=(4,))
    values = divergences(model, vectors, np.array([[0, 1], [2, 2]]))
    assert values[0] > 0
    assert values[1] == 0
    assert isinstance(model.divergence, Reversed)
    assert isinstance(model.divergence.divergence, NeuralBregman)
    assert isinstance(word_model("nbd", vectors, dim=3, swapped=False).divergence, NeuralBregman)
    with pytest.raises(ValueError, match="method of entailment must be one of"):
        word_model("nbdd", vectors)
