# lit-gelu without torch's CUDA, from docker/cpu.lock: docker build --file docker/cpu.Dockerfile --build-arg TORCH_INDEX=ADDRESS
# --tag lit-gelu:cpu . TORCH_INDEX is the package index of torch's builds for CPUs, which PyTorch's page of installation names.
FROM python:3.11-slim AS wheel
COPY . /source
RUN python -m pip wheel --no-deps --wheel-dir /wheels /source

FROM python:3.11-slim
ARG TORCH_INDEX=""
RUN test -n "$TORCH_INDEX" || { echo "Give --build-arg TORCH_INDEX=, the index of torch's builds for CPUs." >&2; exit 1; }
COPY docker/cpu.lock /install/cpu.lock
RUN grep -E '^torch(vision)?==' /install/cpu.lock > /install/torch.lock && grep -vE '^torch(vision)?==' /install/cpu.lock > /install/rest.lock \
    && PIP_INDEX_URL="$TORCH_INDEX" python -m pip install --no-cache-dir --no-deps --requirement /install/torch.lock \
    && python -m pip install --no-cache-dir --no-deps --requirement /install/rest.lock
COPY --from=wheel /wheels /install/wheels
RUN python -m pip install --no-cache-dir --no-deps /install/wheels/*.whl && python -m pip check && lit-gelu --version
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["lit-gelu"]
CMD ["--help"]
