"""The controls of TRADES: which trainings are compared, and that their differences add up."""

from pathlib import Path

import numpy as np
import pytest

import controls
import reproduce
from controls import Training
from support import synthetic
from verdicts import RecordFile

SKILLS = {
    Training(0.0, 6.0, is_normalized=False): 0.5,
    Training(2.0, 6.0, is_normalized=False): 0.9,
    Training(0.0, 3.7, is_normalized=False): 0.2,
    Training(2.0, 6.0, is_normalized=True): 0.7,
}


def save_trainings(folder: Path) -> list[RecordFile]:
    found = []
    for number, (training, skill) in enumerate(SKILLS.items()):
        for seed in range(3):
            defense = f"trades:beta={training.beta:g}"
            rows = synthetic.make_rows(300, skill=skill, seed=seed)
            # the other classes have the logit 0
            logits = np.zeros((300, 10))
            logits[np.arange(300), rows["label"]] = 5 * rows["uniform/margin"]
            rows["uniform/logits"] = logits.astype(np.float32)
            record = synthetic.make_record(
                rows,
                f"digits-{number}-s{seed}",
                seed=seed,
                defense=defense,
                alpha_train=training.alpha,
                training={
                    "defense": defense,
                    "eps": 0.15,
                    "normalize": "batch" if training.is_normalized else "none",
                },
            )
            target = folder / f"{number}-{seed}" / "evaluations"
            found.append(synthetic.save_record(target, record, rows))
    return found


def test_a_record_names_its_training(tmp_path: Path) -> None:
    assert {Training.of(record) for _, record in save_trainings(tmp_path)} == set(SKILLS)


def test_the_effects_of_beta_and_of_the_images_add_up(tmp_path: Path) -> None:
    found = save_trainings(tmp_path)
    both, beta, images, _ = controls.list_contrasts(found)
    for name in controls.ACCURACY_NAMES:
        total, *parts = (
            controls.compare_trainings(found, training, reference).gaps[name].over_images.value
            for _, training, reference in (both, beta, images)
        )
        assert sum(parts) == pytest.approx(total, abs=1e-12)


def test_each_comparison_states_what_differs(tmp_path: Path) -> None:
    unweighted, weighted, same_beta, normalized = SKILLS
    assert controls.list_contrasts(save_trainings(tmp_path)) == [
        ("both", weighted, unweighted),
        ("β", same_beta, unweighted),
        ("choice of images", weighted, same_beta),
        ("choice of images", normalized, unweighted),
    ]


def test_the_page_names_the_studies_of_both_controls() -> None:
    page = reproduce.PAGE.read_text(encoding="utf-8")
    named = [
        (block["controls"], block["of"])
        for block in reproduce.BLOCK.finditer(page)
        if block["controls"]
    ]
    assert named == [("digits-controls", "digits"), ("mnist-controls", "mnist-cpu")]
    for pair in named:
        assert all((reproduce.STUDIES / f"{name}.toml").exists() for name in pair)


def test_unfinished_controls_have_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    study, files = reproduce.load_study("digits-controls")
    finished = dict(list(files.items())[:1])
    monkeypatch.setattr(reproduce, "load_study", lambda name: (study, finished))
    _, progress = reproduce.controls_section("digits-controls", "digits")
    assert progress == "1 of 6 runs are done.\n"
