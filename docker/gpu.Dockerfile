# lit-gelu with CUDA, from docker/gpu.lock: docker build --file docker/gpu.Dockerfile --tag lit-gelu:gpu .
# docker run --rm --gpus all lit-gelu:gpu doctor
FROM python:3.11-slim AS wheel
COPY . /source
RUN python -m pip wheel --no-deps --wheel-dir /wheels /source

FROM python:3.11-slim
COPY docker/gpu.lock /tmp/gpu.lock
RUN python -m pip install --no-cache-dir --no-deps --require-hashes --requirement /tmp/gpu.lock
COPY --from=wheel /wheels /tmp/wheels
RUN python -m pip install --no-cache-dir --no-deps /tmp/wheels/*.whl && python -m pip check && lit-gelu --version
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["lit-gelu"]
CMD ["--help"]
