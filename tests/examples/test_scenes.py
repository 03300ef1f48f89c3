"""Scenes to detect clothes in."""

import torch

from secateur.examples import load_scenes


def test_a_scene_holds_something_in_each_of_its_boxes_and_nothing_beside_them() -> None:
    train, test = load_scenes(train=40, test=10)
    assert (len(train), len(test)) == (40, 10)
    for image, target in train + test:
        assert image.shape == (3, 64, 64)
        assert 0 <= image.min() < image.max() <= 1
        covered = torch.zeros(64, 64, dtype=torch.bool)
        for left, top, right, bottom in target["boxes"].int().tolist():
            inside = image[0, top:bottom, left:right]
            for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):
                assert edge.any(), "the box is no larger than what it holds"
            assert not covered[top:bottom, left:right].any(), "boxes do not overlap"
            covered[top:bottom, left:right] = True
        assert not image[0][~covered].any()
    labels = torch.cat([target["labels"] for _, target in train + test])
    assert set(labels.tolist()) == {1, 2, 3}


def test_scenes_are_the_same_every_time() -> None:
    (first, _), (again, _) = load_scenes(5, 1), load_scenes(5, 1)
    for (image, target), (same_image, same_target) in zip(first, again, strict=True):
        assert torch.equal(image, same_image)
        assert torch.equal(target["boxes"], same_target["boxes"])
