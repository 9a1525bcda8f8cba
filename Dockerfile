# The images of lorarl: `operator`, and `trainer` in two flavours, for CPUs and for NVIDIA GPUs.
#   docker build --target operator -t REGISTRY/lorarl/operator:0.1.0 .
#   docker build --target trainer --build-arg FLAVOUR=cuda -t REGISTRY/lorarl/trainer:0.1.0-cuda .
# A build may be given these secrets, none of which ends up in an image: `ca`, a bundle of certificate authorities;
# `pip.conf` and `uv.toml`, which say where packages come from. docs/images.md has the rest.
ARG PYTHON_IMAGE=python:3.12.14-slim-bookworm@sha256:392307d22300de8b5986851a12d9176dfc0fc073e65bf6523ebd7dcbeb23564e
ARG FLAVOUR=cpu

# ---- base of every image ----
FROM ${PYTHON_IMAGE} AS base
# Bytecode is never compared with its source: a start compiles nothing, even if a registry has changed file times.
ENV PATH=/opt/lorarl/bin:$PATH
RUN groupadd --gid 10001 lorarl \
    && useradd --uid 10001 --gid 10001 --create-home lorarl \
    && echo 'PATH=/opt/lorarl/bin:$PATH' >/etc/profile.d/lorarl.sh \
    && python3.12 -m compileall -q --invalidation-mode unchecked-hash -x '/(test|tests|idlelib|lib2to3|tkinter|turtledemo|ensurepip|site-packages)/' \
       "$(python3.12 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
WORKDIR /home/lorarl

# ---- build tools, which are in no image: uv and hatchling ----
FROM ${PYTHON_IMAGE} AS tools
RUN --mount=type=bind,source=requirements/build.lock,target=/tmp/build.lock \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3.12 -m venv /opt/tools \
    && PIP_CERT=/etc/ssl/certs/ca-certificates.crt /opt/tools/bin/pip install -q --no-cache-dir --require-hashes -r /tmp/build.lock

FROM tools AS wheel
WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY docs/licences.md docs/
COPY requirements/wheel-cpu.lock requirements/gpu.lock requirements/
COPY crds/lorarl_api crds/lorarl_api
COPY operator/lorarl_operator operator/lorarl_operator
COPY trainer_image/lorarl_trainer trainer_image/lorarl_trainer
COPY trainer_image/lorarl trainer_image/lorarl
RUN /opt/tools/bin/hatchling build -t wheel -d /wheel

# ---- operator: packages, then lorarl ----
FROM base AS operator-packages
# Removed: everything but CEL from CEL's package, and the Kubernetes client's typed API, except for the three models
# that kopf uses.
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=bind,source=requirements/operator.lock,target=/tmp/requirements.lock \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=uv.toml,target=/etc/uv/uv.toml \
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    && /opt/tools/bin/uv venv -q --python python3.12 /opt/lorarl \
    && /opt/tools/bin/uv pip install -q --no-cache --python /opt/lorarl/bin/python --no-deps --require-hashes -r /tmp/requirements.lock \
    && cd /opt/lorarl/lib/python3.12/site-packages \
    && rm -r bazel-project cel_expr_python/ext kubernetes/client/api kubernetes/aio/client/api \
    && find kubernetes/client/models kubernetes/aio/client/models -name 'v*.py' ! -name v1_object_meta.py ! -name v1_owner_reference.py \
       ! -name v1_managed_fields_entry.py -delete \
    && python -m compileall -q --invalidation-mode unchecked-hash . \
    && python -c 'import cel_expr_python.cel, kopf, kubernetes.config, kubernetes.aio.client, kubernetes.aio.config'

FROM operator-packages AS operator
RUN --mount=type=bind,source=scripts/sbom.py,target=/tmp/sbom.py \
    --mount=type=bind,source=requirements/operator.lock,target=/tmp/requirements.lock \
    --mount=type=bind,source=pyproject.toml,target=/tmp/pyproject.toml \
    python /tmp/sbom.py /tmp/requirements.lock --image lorarl/operator --project /tmp/pyproject.toml --output /usr/share/lorarl/sbom.cdx.json
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    /opt/tools/bin/uv pip install -q --no-cache --offline --python /opt/lorarl/bin/python --no-deps /wheel/*.whl \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/lorarl/lib/python3.12/site-packages/lorarl_* \
    && rm -f /opt/lorarl/.lock
USER 10001:10001
ENTRYPOINT ["lorarl-operator"]
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lorarl operator" \
      org.opencontainers.image.description="Turns LoRARLJobs into KubeRay clusters" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"

# ---- trainer for CPUs: packages without CUDA, stand-ins for the libraries that torch links to ----
FROM base AS trainer-cpu-packages
RUN apt-get update -q && apt-get install -q -y --no-install-recommends libgomp1 libnuma1 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=bind,source=requirements/trainer-cpu.lock,target=/tmp/requirements.lock \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=uv.toml,target=/etc/uv/uv.toml \
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    && /opt/tools/bin/uv venv -q --python python3.12 /opt/lorarl \
    && PYC_INVALIDATION_MODE=UNCHECKED_HASH /opt/tools/bin/uv pip install -q --no-cache --python /opt/lorarl/bin/python --no-deps \
       --require-hashes --compile-bytecode -r /tmp/requirements.lock

FROM trainer-cpu-packages AS cuda-stand-ins
RUN apt-get update -q && apt-get install -q -y --no-install-recommends gcc libc6-dev
RUN --mount=type=bind,source=scripts/cuda_stand_ins.py,target=/tmp/cuda_stand_ins.py \
    python /tmp/cuda_stand_ins.py /opt/lorarl/lib/python3.12/site-packages/torch/lib /stand-ins

FROM trainer-cpu-packages AS trainer-cpu
COPY --from=cuda-stand-ins /stand-ins /opt/lorarl/lib/python3.12/site-packages/torch/lib
RUN --mount=type=bind,source=scripts/sbom.py,target=/tmp/sbom.py \
    --mount=type=bind,source=requirements/trainer-cpu.lock,target=/tmp/requirements.lock \
    --mount=type=bind,source=pyproject.toml,target=/tmp/pyproject.toml \
    python /tmp/sbom.py /tmp/requirements.lock --image lorarl/trainer --project /tmp/pyproject.toml --output /usr/share/lorarl/sbom.cdx.json

# ---- trainer for GPUs: CUDA from the packages; Transformer Engine's torch extension is compiled here ----
FROM base AS trainer-cuda
# The compiler stays in the image: Triton and FlashInfer compile their kernels' launchers when a job starts.
RUN apt-get update -q && apt-get install -q -y --no-install-recommends g++ libgomp1 libnuma1 && rm -rf /var/lib/apt/lists/*
# NVIDIA_VISIBLE_DEVICES: in a pod that asks for GPUs, the device plugin names them; any other container gets none.
# FORCE_BUILD: by default the extension's build fetches a binary that is in no lock. The packages have CUDA's headers.
ENV CUDA_HOME=/opt/lorarl/lib/python3.12/site-packages/nvidia/cu13 NVIDIA_VISIBLE_DEVICES=void NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=bind,source=requirements/gpu.lock,target=/tmp/requirements.lock \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=uv.toml,target=/etc/uv/uv.toml \
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt NVTE_BUILD_USE_NVIDIA_WHEELS=1 NVTE_PYTORCH_FORCE_BUILD=TRUE \
    && /opt/tools/bin/uv venv -q --python python3.12 /opt/lorarl \
    && PYC_INVALIDATION_MODE=UNCHECKED_HASH /opt/tools/bin/uv pip install -q --no-cache --python /opt/lorarl/bin/python --no-deps \
       --require-hashes --compile-bytecode --no-build-isolation-package transformer-engine-torch -r /tmp/requirements.lock
RUN --mount=type=bind,source=scripts/sbom.py,target=/tmp/sbom.py \
    --mount=type=bind,source=requirements/gpu.lock,target=/tmp/requirements.lock \
    --mount=type=bind,source=pyproject.toml,target=/tmp/pyproject.toml \
    python /tmp/sbom.py /tmp/requirements.lock --image lorarl/trainer --project /tmp/pyproject.toml --output /usr/share/lorarl/sbom.cdx.json

# ---- trainer: lorarl on top of either flavour ----
FROM trainer-${FLAVOUR} AS trainer
ARG FLAVOUR
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    /opt/tools/bin/uv pip install -q --no-cache --offline --python /opt/lorarl/bin/python --no-deps /wheel/*.whl \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/lorarl/lib/python3.12/site-packages/lorarl_* \
    && rm -f /opt/lorarl/.lock
COPY trainer_image/ray /opt/lorarl/bin/ray
COPY trainer_image/submitter.bash /opt/lorarl/share/submitter.bash
ENV BASH_ENV=/opt/lorarl/share/submitter.bash
USER 10001:10001
CMD ["lorarl", "--help"]
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="lorarl trainer (${FLAVOUR})" \
      org.opencontainers.image.description="Trains LoRA adapters with reinforcement learning: Megatron, vLLM and Ray in one image" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
