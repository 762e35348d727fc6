# Qontext as a server, with PyTorch for CPUs. Build: docker build --tag qontext .
FROM python:3.13-slim-trixie AS build

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/qontext
ENV PATH=/opt/qontext/bin:$PATH
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# torch first, from its own index: elsewhere it is the build for CUDA.
RUN sed -n 's/^torch==/&/p' constraints.txt > torch.txt \
    && pip install --requirement torch.txt --index-url "$TORCH_INDEX" \
    && pip install --constraint constraints.txt '.[serve,docs,postgres]'

FROM python:3.13-slim-trixie

COPY --from=build /opt/qontext /opt/qontext
RUN useradd --create-home --uid 10001 qontext \
    && install --directory --owner=qontext /data /documents /home/qontext/.cache
ENV PATH=/opt/qontext/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /data
VOLUME ["/data", "/home/qontext/.cache"]
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz')"]
ENTRYPOINT ["qontext"]
# Beyond this container, the server asks for the token in QONTEXT_TOKEN, and does not start without one.
CMD ["serve", "/data/mine", "--host", "0.0.0.0"]
