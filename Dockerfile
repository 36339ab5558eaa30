# The demo, or any command, in a container:
#   docker build -t wmr .
#   docker run --rm wmr
#   docker run --rm -v "$PWD/runs:/home/wmr/runs" --user "$(id -u)" wmr wmr train --resume
# With a GPU:
#   docker build -t wmr-cuda --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 .
#   docker run --rm --gpus all wmr-cuda
# Each base has apt-get and Python 3.11.4 or newer. Libraries of CUDA are part of the wheels of torch.
ARG BASE=ubuntu:24.04
FROM ${BASE}

# The index of apt-get has one version of a package, so a pinned one stops building.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

# an index with wheels of torch for CPUs makes the image without CUDA smaller
ARG PIP_EXTRA_INDEX_URL=
ENV PATH=/opt/wmr/bin:$PATH
RUN python3 -m venv /opt/wmr

# dependencies first: a change of the source keeps this layer
WORKDIR /tmp/wmr
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src/wmr_cli/__init__.py src/wmr_cli/
RUN pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .
COPY src src
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --force-reinstall .

# any user may write here, so that `--user` can name the owner of a mounted folder
ENV HOME=/home/wmr
WORKDIR /home/wmr
RUN useradd --uid 10001 --home-dir /home/wmr wmr && chmod 1777 /home/wmr
USER 10001

CMD ["sh", "-c", "wmr train --resume && wmr evaluate runs/digits-trades-a2-s0 --resume && wmr report runs/digits-trades-a2-s0"]
