import torch
from hypothesis import given
from hypothesis import strategies as st

from wmr_cli.core.data.loaders import as_split_or_stream
from wmr_cli.evaluation.batching import CHUNK, CHUNKS, FEWEST, batch_images, batches, chunks

ROUNDED_BY_THREADS = 12
"""Products of fewer rows than this may be rounded by how many threads share them."""


def cut(images: int, batch_size: int) -> list[int]:
    return [
        len(part)
        for chunk in chunks(torch.arange(images))
        for part in batches(chunk, images, batch_size)
    ]


@given(images=st.integers(1, 3 * CHUNK * CHUNKS))
def test_few_images_make_even_chunks(images: int) -> None:
    parts = chunks(torch.arange(images))
    sizes = [len(chunk) for chunk in parts]
    assert torch.cat(parts).tolist() == list(range(images))
    assert max(sizes) <= CHUNK
    if images < CHUNK * CHUNKS:
        assert len(sizes) == min(CHUNKS, max(1, images // FEWEST))
        assert max(sizes) - min(sizes) <= 1


@given(
    images=st.integers(ROUNDED_BY_THREADS, CHUNK * CHUNKS),
    batch_size=st.sampled_from([32, 50, 64, 100, 128, 200, 256, 1000]),
)
def test_no_batch_of_few_images_is_a_handful(images: int, batch_size: int) -> None:
    sizes = cut(images, batch_size)
    assert sum(sizes) == images
    assert ROUNDED_BY_THREADS <= min(sizes) <= max(sizes) <= batch_size


def test_a_stream_is_cut_as_a_split_of_as_many_images() -> None:
    for images in (1, 37, 69, 257, 552, 2047, 2048, 2350):
        pictures, labels = torch.zeros(images, 1, 1, 1), torch.zeros(images, dtype=torch.int64)
        stream = as_split_or_stream(iter(zip(pictures.split(7), labels.split(7), strict=True)), 100)
        assert [len(batch.labels) for batch in batch_images(stream, 100)] == cut(images, 100)


def test_a_stream_of_an_empty_batch_ends() -> None:
    empty = as_split_or_stream(
        iter([(torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.int64))]), 100
    )
    assert list(batch_images(empty, 100)) == []
