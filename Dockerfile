# The command line of pltz in an image, from the wheel. tests/test_packaging.py runs these steps without a container.
#
#   docker build --tag pltz .
#   docker build --tag pltz:cuda --build-arg EXTRAS=thaw,cuda,s3,serve .
#   docker run --rm --volume /data:/data pltz archive ls -r /data/cold
#   docker run --rm --gpus all pltz:cuda bench thaw --device cuda
ARG PYTHON=3.13

FROM python:${PYTHON} AS build
WORKDIR /src
COPY . .
RUN python -m pip wheel --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG EXTRAS=thaw,s3,serve,postgres
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir "$(ls /wheels/pltz-*.whl)[$EXTRAS]"
RUN pltz --version && pltz bundle show mini
RUN mkdir -p /data && chown 1000:1000 /data
USER 1000:1000
ENV HOME=/tmp
WORKDIR /data
ENTRYPOINT ["pltz"]
CMD ["--help"]
