"""The CTranslate2 engine: the same model, converted once, several times faster on a CPU.

Its random numbers come one after the other from one stream per worker, which is seeded anew for every
part. So a part comes out the same again with the same settings (`batch_tokens` and `part_passages` among
them) on the same kind of processor, but a passage's queries depend on what stands beside it in its part.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qontext import log
from qontext.collection import Passage
from qontext.disk import raise_disk_error
from qontext.engine.randomness import torch_seed
from qontext.errors import QontextError, missing_extra
from qontext.queries.seq2seq import load_tokenizer, model_folder
from qontext.queries.t5 import Source

if TYPE_CHECKING:
    from qontext.queries.generate import GenerateConfig

_FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
_CALL = 8
"""Batches per call, so that the progress moves and sorting by length still pays."""


class CTranslate2:
    """Callable generator; a translator is made anew for every part, which is what seeds its random stream."""

    def __init__(self, settings: GenerateConfig) -> None:
        library = _library()
        folder = model_folder(str(settings.model))
        on_gpu = settings.device.startswith("cuda") or (
            settings.device == "auto" and library.get_cuda_device_count() > 0
        )
        self.device, _, number = ("cuda" if on_gpu else "cpu"), *settings.device.partition(":")[1:]
        self.device_index = int(number or os.environ.get("LOCAL_RANK", "0")) if on_gpu else 0
        precision = settings.precision if settings.precision != "auto" else "fp16" if on_gpu else "int8"
        self.format = _FORMATS[precision]
        supported = library.get_supported_compute_types(self.device, self.device_index)
        if self.format not in supported:
            raise QontextError(
                f"this {self.device} does not compute in {precision}",
                remedy=f"It knows: {', '.join(sorted(supported))}.",
            )
        self.converted = converted(folder, self.format)
        self.tokenizer = load_tokenizer(folder)
        self.source, self.settings, self.library = Source.of(settings, folder), settings, library
        self.tally: Counter[str] = Counter()

    def __call__(self, passages: list[Passage]) -> Iterator[tuple[int, list[str]]]:
        settings = self.settings
        if not passages:
            return
        first = zlib.crc32(passages[0].id.encode())
        self.library.set_random_seed(torch_seed(settings.seed, "ctranslate2", first) & 0x7FFFFFFF)
        translator = self.library.Translator(
            str(self.converted), device=self.device, device_index=self.device_index, compute_type=self.format,
            inter_threads=1, intra_threads=int(os.environ.get("OMP_NUM_THREADS", "0")),
        )  # fmt: skip
        ids = self.source.encode(self.tokenizer, passages, settings.max_passage_tokens)
        order = sorted(range(len(ids)), key=lambda i: (-len(ids[i]), i))
        size = max(1, _CALL * settings.batch_tokens // max(1, len(ids[order[0]])))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            results = translator.translate_batch(
                [self.tokenizer.convert_ids_to_tokens(ids[i]) for i in batch],
                max_batch_size=settings.batch_tokens, batch_type="tokens",
                beam_size=1, num_hypotheses=settings.per_passage,
                sampling_topk=settings.top_k, sampling_topp=settings.top_p,
                sampling_temperature=settings.temperature, max_decoding_length=settings.max_new_tokens,
            )  # fmt: skip
            for place, result in zip(batch, results):
                yield place, [self._decode(tokens) for tokens in result.hypotheses]

    def _decode(self, tokens: list[str]) -> str:
        return str(
            self.tokenizer.decode(self.tokenizer.convert_tokens_to_ids(tokens), skip_special_tokens=True)
        )


def converted(folder: Path, format: str) -> Path:
    """The model in CTranslate2's format, from the cache or converted now; whole or not there."""
    library = _library()
    mark = hashlib.blake2b(digest_size=8)
    for file in sorted(folder.iterdir()):
        if file.is_file():
            # Resolved names of the hub's cache are content hashes; size and time stand for local files.
            real = file.resolve()
            mark.update(f"{file.name} {real.name} {real.stat().st_size} {real.stat().st_mtime_ns}\n".encode())
    target = cache_folder() / f"{folder.name}-{mark.hexdigest()}-{format}-ct{library.__version__}"
    if (target / "model.bin").is_file():
        return target
    log.note(f"Converting {folder} for CTranslate2, once, into {target}.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        library.converters.TransformersConverter(str(folder)).convert(str(temporary), quantization=format)
        if not target.exists():  # another process may have been quicker
            temporary.rename(target)
    except OSError as error:
        if not (target / "model.bin").is_file():
            raise_disk_error(error, target)
    except (ValueError, RuntimeError, KeyError, AttributeError) as error:
        first = str(error).strip().splitlines()[0]
        raise QontextError(
            f"CTranslate2 cannot convert this model: {first}",
            place=folder,
            remedy="Use --engine transformers.",
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def cache_folder() -> Path:
    """Where converted models are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qontext" / "ctranslate2"


def _library() -> Any:
    try:
        import ctranslate2
        import ctranslate2.converters
    except ImportError:
        raise missing_extra("ctranslate2", "qgen", "The engine ctranslate2") from None
    return ctranslate2
