# The training job of training-with-progress.yaml. From the repository's root:
# docker build -f deploy/examples/training.Dockerfile -t registry.example/training:1 .
FROM python:3.13-slim
RUN pip install --no-cache-dir torch numpy
COPY python /opt/eadt
RUN pip install --no-cache-dir /opt/eadt
RUN install -d -o 65532 -g 65532 /checkpoints
WORKDIR /opt/eadt
USER 65532:65532
CMD ["python", "-m", "examples.plain", "--folder", "/checkpoints"]
