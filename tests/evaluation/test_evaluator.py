"""Images are cut into the same batches for splits and streams."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wmr_cli.core.data.loaders import as_split_or_stream
from wmr_cli.evaluation.evaluator import (
    CHUNK_SIZE,
    MAX_EVEN_CHUNKS,
    MIN_CHUNK_SIZE,
    batch_images,
    choose_chunk_size,
    split_into_batches,
    split_into_chunks,
)

MIN_ROWS = 12
"""Sums of products with fewer rows than this may depend on the number of threads."""


def list_batch_sizes(images: int, batch_size: int, chunk_size: int = CHUNK_SIZE) -> list[int]:
    """Return the sizes of all batches of an evaluation."""
    sizes = []
    for chunk in split_into_chunks(torch.arange(images), chunk_size):
        sizes += [len(part) for part in split_into_batches(chunk, images, batch_size)]
    return sizes


@given(images=st.integers(1, 3 * CHUNK_SIZE * MAX_EVEN_CHUNKS))
def test_few_images_are_divided_into_even_chunks(images: int) -> None:
    parts = split_into_chunks(torch.arange(images), CHUNK_SIZE)
    sizes = [len(chunk) for chunk in parts]
    assert torch.cat(parts).tolist() == list(range(images))
    assert max(sizes) <= CHUNK_SIZE
    if images < CHUNK_SIZE * MAX_EVEN_CHUNKS:
        assert len(sizes) == min(MAX_EVEN_CHUNKS, max(1, images // MIN_CHUNK_SIZE))
        assert max(sizes) - min(sizes) <= 1


@given(
    images=st.integers(MIN_ROWS, CHUNK_SIZE * MAX_EVEN_CHUNKS),
    batch_size=st.sampled_from([32, 50, 64, 100, 128, 200, 256, 1000]),
)
def test_batches_of_few_images_are_not_too_small(images: int, batch_size: int) -> None:
    sizes = list_batch_sizes(images, batch_size)
    assert sum(sizes) == images
    assert MIN_ROWS <= min(sizes) <= max(sizes) <= batch_size


def test_a_stream_is_cut_like_a_split_of_the_same_size() -> None:
    for count in (1, 37, 69, 257, 552, 2047, 2048, 2350):
        images = torch.zeros(count, 1, 1, 1)
        labels = torch.zeros(count, dtype=torch.int64)
        loader = zip(images.split(7), labels.split(7), strict=True)
        stream = as_split_or_stream(iter(loader), 100)
        sizes = [len(batch.labels) for batch in batch_images(stream, 100, CHUNK_SIZE)]
        assert sizes == list_batch_sizes(count, 100)


@pytest.mark.parametrize("batch_size", [300, 4096])
def test_batches_on_an_accelerator_are_as_large_as_asked(batch_size: int) -> None:
    chunk_size = choose_chunk_size(batch_size, torch.device("meta"))
    for count in (100, 1000, 10000):
        sizes = list_batch_sizes(count, batch_size, chunk_size)
        assert sum(sizes) == count
        assert set(sizes[:-1]) <= {batch_size}
        images = torch.zeros(count, 1, 1, 1)
        labels = torch.zeros(count, dtype=torch.int64)
        loader = zip(images.split(70), labels.split(70), strict=True)
        batches = batch_images(as_split_or_stream(iter(loader), 70), batch_size, chunk_size)
        assert [len(batch.labels) for batch in batches] == sizes


@pytest.mark.parametrize("batch_size", [300, 4096])
def test_batches_on_a_cpu_do_not_exceed_a_chunk(batch_size: int) -> None:
    chunk_size = choose_chunk_size(batch_size, torch.device("cpu"))
    assert list_batch_sizes(10000, batch_size, chunk_size) == list_batch_sizes(10000, CHUNK_SIZE)


def test_small_batches_are_the_same_on_all_devices() -> None:
    assert choose_chunk_size(100, torch.device("meta")) == CHUNK_SIZE


def test_a_stream_of_one_empty_batch_has_no_images() -> None:
    empty = (torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.int64))
    stream = as_split_or_stream(iter([empty]), 100)
    assert list(batch_images(stream, 100, CHUNK_SIZE)) == []
