# sotto with the tested versions of its dependencies: docker build -t sotto . && docker run sotto --help
FROM python:3.12-slim
WORKDIR /app
COPY requirements/dev.lock requirements/
RUN pip install --no-cache-dir --require-hashes --requirement requirements/dev.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --no-deps --no-build-isolation .
RUN useradd --create-home sotto && mkdir /runs && chown sotto /runs
USER sotto
WORKDIR /runs
ENTRYPOINT ["sotto"]
