# A CPU image with fairseq_resid and all commands. Its steps are those of the README's section "Install".
#     docker build -t fairseq_resid .
#     docker run --rm -it fairseq_resid scripts/quickstart.sh
# This image has never been built, because no Docker was available. A test compares its steps with the README.
FROM python:3.13-bookworm

WORKDIR /fairseq_resid
COPY . .

# The CPU build of torch, as scripts/setup.sh --help describes.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN scripts/setup.sh

ENV PATH=/fairseq_resid/.venv/bin:$PATH
CMD ["fairseq-resid", "--help"]
