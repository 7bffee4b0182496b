"""Faults that plant_faults.py plants in fairseq_resid/data."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "archives: a member outside the folder is accepted",
        "fairseq_resid/data/extract.py",
        ' or ".." in parts',
        "",
        "data/test_extract.py",
    ),
    Fault(
        "archives: a wrong checksum is accepted",
        "fairseq_resid/data/fetch.py",
        "if expected is not None and actual != expected:",
        'if expected is not None and kind == "bytes" and actual != expected:',
        "data/test_fetch.py data/test_provenance.py",
    ),
    Fault(
        "references: written from normalised text",
        "fairseq_resid/data/extract.py",
        'LAYOUT = re.compile(r"[ \\t\\r\\n\\f\\v]+")',
        'LAYOUT = re.compile(r"\\s+")',
        "data/test_extract.py data/test_provenance.py",
    ),
    Fault(
        "cleaning: the length ratio is checked in one direction only",
        "fairseq_resid/data/text/clean.py",
        "max(source, target) > self.max_ratio * min(source, target)",
        "source > self.max_ratio * target",
        "data/test_clean.py",
    ),
    Fault(
        "cleaning: test text is cleaned too",
        "fairseq_resid/data/text/text_steps.py",
        "limits = job.limits if is_train else None",
        "limits = job.limits",
        "data/test_provenance.py data/test_prepare.py",
    ),
    Fault(
        "text: escapes are undone twice",
        "fairseq_resid/data/text/forms.py",
        "for character, entity in reversed(ESCAPES.items()):",
        "for character, entity in ESCAPES.items():",
        "data/test_prepare.py",
    ),
    Fault(
        "steps: a damaged result of an earlier step is used",
        "fairseq_resid/data/text/steps.py",
        "(folder / file).stat().st_size == size",
        "(folder / file).stat().st_size >= 0",
        "data/test_prepare_stopped.py",
    ),
    Fault(
        "shards: shards of a different text are used",
        "fairseq_resid/data/text/shards.py",
        "        key.update((source.sha256 + target.sha256).encode())\n",
        "",
        "data/test_shards.py",
    ),
    Fault(
        "shards: a half-written shard is kept after a kill",
        "fairseq_resid/data/text/shards.py",
        "                    file.truncate(place)\n",
        "",
        "data/test_shards.py",
    ),
    Fault(
        "images: every epoch has the same crops",
        "fairseq_resid/data/images/augmentation.py",
        "np.random.Philox(key=[seed, epoch])",
        "np.random.Philox(key=[seed, 1])",
        "images/test_image_batches.py",
    ),
    Fault(
        "images: a mirrored crop is shifted to the wrong side",
        "fairseq_resid/data/images/augmentation.py",
        "            right = -right\n",
        "            pass\n",
        "images/test_image_batches.py",
    ),
    Fault(
        "images: the superclass is used as the class",
        "fairseq_resid/data/images/sources.py",
        'labels = np.concatenate([some["labels"][:, manifest.labels.index("class")] for some in images])',
        'labels = np.concatenate([some["labels"][:, 0] for some in images])',
        "images/test_prepare_images.py",
    ),
    Fault(
        "images: the first images of every class are held out",
        "fairseq_resid/data/images/prepare.py",
        "np.arange(len(labels)) >= ends - held[labels]",
        "np.arange(len(labels)) < ends - (counts - held)[labels]",
        "images/test_prepare_images.py",
    ),
    Fault(
        "images: the standard deviation includes held-out images",
        "fairseq_resid/data/images/prepare.py",
        'if split == "train":',
        'if split != "test":',
        "images/test_prepare_images.py",
    ),
    Fault(
        "images: an image of a different size is accepted",
        "fairseq_resid/data/images/by_class.py",
        "if shape is not None and (height, width) != shape[1:]:",
        "if shape is not None and height != shape[1]:",
        "images/test_prepare_images_errors.py",
    ),
    Fault(
        "data folder: file sizes are not compared",
        "fairseq_resid/data/sizes.py",
        "file.stat().st_size != sizes[name]",
        "file.stat().st_size < 0",
        "data/test_data_folder.py",
    ),
]
