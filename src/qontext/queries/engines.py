"""The generator `t5`, run by one of two engines: transformers, or CTranslate2, which is faster on a CPU."""

from __future__ import annotations

from qontext.frame.errors import QontextError
from qontext.queries.generators import Generator, Task
from qontext.queries.t5 import T5Options, Transformers


class T5(Transformers):
    """A sequence-to-sequence model."""

    @classmethod
    def open(cls, options: T5Options, task: Task) -> Generator:
        if options.engine == "ctranslate2":
            from qontext.queries.ct2 import CTranslate2

            return CTranslate2(options, task)
        return Transformers(options, task)

    @classmethod
    def computes_in(cls, options: T5Options) -> tuple[str, str]:
        if options.engine == "ctranslate2":
            from qontext.queries import ct2

            return ct2.computes_in(options)
        from qontext.models.precision import own_device, precision_name, resolve_device, resolve_precision

        if options.precision == "int8":
            raise QontextError(
                "int8 is only supported by the engine ctranslate2", remedy="Add --engine ctranslate2."
            )
        device = resolve_device(own_device(options.device))
        return precision_name(resolve_precision(options.precision, device)), device.type
