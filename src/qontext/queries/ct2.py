"""The CTranslate2 engine: the same model, converted once and computed in int8.

Its random numbers come from one stream per worker, which is reseeded for every part. So a part is
reproducible with the same settings (including `batch_tokens` and `part_passages`) on the same type of
processor, but a passage's queries depend on the other passages in its part.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qontext.data.collection import Passage
from qontext.frame import launch
from qontext.frame.errors import QontextError, first_line, missing_extra
from qontext.frame.hashes import cache_folder
from qontext.models.converted import converted, mark
from qontext.models.seq2seq import load_tokenizer, model_folder
from qontext.queries.generators import Generator, Task
from qontext.queries.t5 import Source, T5Options
from qontext.training.randomness import torch_seed

_FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
_CALL = 8
"""Batches per call: a trade-off between progress updates and sorting by length."""


class CTranslate2(Generator):
    """A new translator is created for every part, because that seeds its random stream."""

    Options = T5Options

    def __init__(self, settings: T5Options, task: Task) -> None:
        library = _library()
        folder = model_folder(settings.model)
        precision, self.device = computes_in(settings)
        number, on_gpu = settings.device.partition(":")[2], self.device == "cuda"
        self.device_index = int(number or launch.local_rank() or 0) if on_gpu else 0
        self.format = _FORMATS[precision]
        supported = library.get_supported_compute_types(self.device, self.device_index)
        if self.format not in supported:
            raise QontextError(
                f"this {self.device} does not support {precision}",
                remedy=f"Supported: {', '.join(sorted(supported))}.",
            )
        self.converted = ct2_model(folder, self.format)
        self.tokenizer = load_tokenizer(folder)
        self.source, self.settings, self.library = Source.of(settings, folder), settings, library
        self.task = task
        self.tally: Counter[str] = Counter()

    @classmethod
    def open(cls, options: T5Options, task: Task) -> Generator:
        return CTranslate2(options, task)

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        settings = self.settings
        if not passages:
            return
        first = zlib.crc32(passages[0].id.encode())
        self.library.set_random_seed(torch_seed(self.task.seed, "ctranslate2", first) & 0x7FFFFFFF)
        translator = self.library.Translator(
            str(self.converted), device=self.device, device_index=self.device_index, compute_type=self.format,
            inter_threads=1, intra_threads=launch.threads(),
        )  # fmt: skip
        ids = self.source.encode(self.tokenizer, passages, settings.max_passage_tokens)
        order = sorted(range(len(ids)), key=lambda i: (-len(ids[i]), i))
        size = max(1, _CALL * settings.batch_tokens // max(1, len(ids[order[0]])))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            results = translator.translate_batch(
                [self.tokenizer.convert_ids_to_tokens(ids[i]) for i in batch],
                max_batch_size=settings.batch_tokens, batch_type="tokens",
                beam_size=1, num_hypotheses=self.task.per_passage,
                sampling_topk=settings.top_k, sampling_topp=settings.top_p,
                sampling_temperature=settings.temperature, max_decoding_length=settings.max_new_tokens,
            )  # fmt: skip
            for place, result in zip(batch, results):
                yield place, [self._decode(tokens) for tokens in result.hypotheses]

    def _decode(self, tokens: list[str]) -> str:
        return str(
            self.tokenizer.decode(self.tokenizer.convert_tokens_to_ids(tokens), skip_special_tokens=True)
        )


def computes_in(settings: T5Options) -> tuple[str, str]:
    """The number format and device type for these settings on this machine."""
    on_gpu = settings.device.startswith("cuda") or (
        settings.device == "auto" and _library().get_cuda_device_count() > 0
    )
    automatic = "fp16" if on_gpu else "int8"
    return (automatic if settings.precision == "auto" else settings.precision), "cuda" if on_gpu else "cpu"


def ct2_model(folder: Path, format: str) -> Path:
    """The model in CTranslate2's format, from the cache or converted now."""
    library = _library()
    files = mark(file for file in folder.iterdir() if file.is_file())
    name = f"{folder.name}-{files}-{format}-ct{library.__version__}"

    def convert(target: Path) -> None:
        try:
            library.converters.TransformersConverter(str(folder)).convert(str(target), quantization=format)
        except (ValueError, RuntimeError, KeyError, AttributeError) as error:
            raise QontextError(
                f"CTranslate2 cannot convert this model: {first_line(error)}",
                place=folder,
                remedy="Use --engine transformers.",
            ) from None

    return converted(folder, cache_folder("ctranslate2") / name, "model.bin", convert)


def _library() -> Any:
    try:
        import ctranslate2
        import ctranslate2.converters
    except ImportError:
        raise missing_extra("ctranslate2", "qgen", "The engine ctranslate2") from None
    return ctranslate2
