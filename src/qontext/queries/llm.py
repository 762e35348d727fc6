from qontext.config import StageConfig


class LlmOptions(StageConfig):
    pass


def open_generator(settings): ...
